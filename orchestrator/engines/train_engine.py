"""The engine `train`: each run is a Ray Train job, with Train's fault tolerance."""

import uuid
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.placement_groups import find_placement_group, remove_placement_group_of
from orchestrator.engines.preemption import find_nodes_of
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.report_queue import ReportQueue
from orchestrator.engines.train_failures import FailureCallback, make_run_error
from orchestrator.engines.train_worker import train_and_report
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report
from orchestrator.private_api.ray_train import without_extra_actors

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

SCRATCH = ".ray"
"""Folder in the run's folder for Ray Train's own files."""

_MAX_FAILED_STARTS = 60
"""Starts without resources, of a minute each, before a job fails; a host may return, or an
autoscaler may add one."""


class TrainJobs:
    """Engine that starts a Ray Train job for each run. Used in a trial's process or in a run's
    driver.

    `lean` omits the actors with which Ray Train handles a lost driver, because Ray ends with the
    driver anyway.
    """

    def __init__(self, workers: Workers, *, lean: bool = True) -> None:
        set_environment(None)
        self._lean = lean
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train-job")
        self._queue: Any = None
        self._job: Future[None] | None = None
        self._run: RunFolder | None = None

    @staticmethod
    def list_bundles(workers: Workers) -> list[dict[str, float]]:
        """Return a byte of memory for the trial's own process, because Tune rejects an empty
        bundle."""
        return [{"memory": 1}]

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Start the job in a thread. A run's mailbox is also its report queue."""
        self._run = RunFolder(assignment.location)
        remove_placement_group_of(self._run)
        if assignment.mailbox:
            self._queue = ray.get_actor(assignment.mailbox)
        else:
            self._queue = ray.remote(ReportQueue).options(num_cpus=0).remote()
        ray.get(self._queue.begin.remote())
        experiment = (resolved or resolve(assignment.source)).experiment
        self._job = self._threads.submit(self._train, self._queue, assignment, experiment)

    def _train(self, queue: Any, assignment: Assignment, experiment: Experiment) -> None:
        """Run a worker group to its end, and restart it from its last checkpoint when a worker
        dies.

        Raises RunError with the message of the rank that failed first; a user error is not retried.
        """
        folder = RunFolder(assignment.location)
        with ExitStack() as on_exit:
            on_exit.callback(lambda: ray.get(queue.close.remote()))
            on_exit.callback(remove_placement_group_of, folder)
            on_exit.callback(folder.storage.delete, SCRATCH)
            trainer = self._make_trainer(queue, assignment, experiment)
            try:
                trainer.fit()
            except TrainingFailedError as error:
                raise make_run_error(error, experiment.workers.max_count, folder) from error

    def _make_trainer(
        self, queue: Any, assignment: Assignment, experiment: Experiment
    ) -> "TorchTrainer":
        from ray.train.torch import TorchTrainer

        workers = experiment.workers
        num_workers: int | tuple[int, int] = workers.max_count
        if workers.min_count < workers.max_count:
            num_workers = (workers.min_count, workers.max_count)
        scaling = ScalingConfig(
            num_workers=num_workers,
            use_gpu=bool(workers.gpu),
            resources_per_worker=workers.bundle,
        )

        storage = RunFolder(assignment.location).storage
        on_failure = FailureCallback(
            queue, assignment.mailbox, assignment.location, workers.max_count
        )
        run_config = RunConfig(
            # A new name for each attempt, so that Ray does not restore its own state of an
            # earlier one.
            name=f"ray-{uuid.uuid4().hex[:8]}",
            storage_path=f"{storage.root}/{SCRATCH}",
            storage_filesystem=storage.filesystem,
            callbacks=[on_failure],
            failure_config=FailureConfig(
                max_failures=experiment.max_failures,
                controller_failure_limit=3 if self._lean else _MAX_FAILED_STARTS,
            ),
        )
        trainer_class = without_extra_actors(TorchTrainer) if self._lean else TorchTrainer
        return trainer_class(
            partial(train_and_report, queue),
            train_loop_config=assignment,
            scaling_config=scaling,
            run_config=run_config,
        )

    def next(self) -> Report | None:
        """Let the job train to its next report. Raises the job's failure after Train's own
        retries."""
        report: Report | None = ray.get(self._queue.next.remote())
        if report is None:
            assert self._job is not None
            self._job.result()
        return report

    def find_nodes(self) -> set[str]:
        """Return the ids of the nodes of its processes; any thread may call it."""
        group = find_placement_group(self._run) if self._run else None
        return find_nodes_of(group) if group else set()

    def save(self) -> str:
        """Raise: the config refuses schedulers that pause trials."""
        raise NotImplementedError("engine: train does not pause trials")

    def end_run(self, run_index: int) -> None:
        """Raise: trials do not share a job."""
        raise NotImplementedError("engine: train makes each trial a job of its own")

    def end(self) -> None:
        """End the ranks at their next reports, and wait for the end of the job's processes."""
        if self._job is None:
            return
        ray.get(self._queue.end.remote())
        wait([self._job])
        self._job = None
        self._queue = None
