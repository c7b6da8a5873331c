"""The engine `train`: each run is a Ray Train job, with Train's fault tolerance."""

import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, suppress
from functools import partial
from time import sleep
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    remove_placement_group,
)

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.mailbox import ReportOrdinal, ReportQueue
from orchestrator.engines.preemption import nodes_of
from orchestrator.engines.rank_failures import RankFailed, find_root_failure, format_failure_line
from orchestrator.engines.ray_data import data_of
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.session import Session
from orchestrator.errors import HookyardError, RunError
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.private_api.ray_core import unwrap, without_extra_actors

_GROUP = ".ray_placement_group"
"""File in the run's folder with the id of its job's placement group."""

SCRATCH = ".ray"
"""Folder in the run's folder for Ray Train's own files."""

_MAX_FAILED_STARTS = 60
"""Starts without resources, of a minute each, before a job fails; a host may return, or an
autoscaler may add one."""

_RESTART_DELAY_S = 2.0
"""Seconds before a controller replaces workers. Meanwhile Ray ends a controller whose trial has
died; otherwise its resources would stay reserved, and the trial's next attempt would wait for
them."""


def train_and_report(queue: Any, assignment: Assignment) -> None:
    """Train one rank of a job; after each report, wait for the driver. Runs in Ray Train's
    workers."""
    if not ray.get(queue.should_train.remote()):
        return
    from ray.train.torch import get_device

    context = ray.train.get_context()
    folder = RunFolder(assignment.location)
    world = World(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        device=get_device(),
    )
    if world.is_master:
        folder.storage.write(_GROUP, get_current_placement_group().id.hex())
    written: int | None = None
    try:
        with closing(
            Session(assignment, world, data_of=partial(data_of, of_train=True)).reports()
        ) as training:
            for report in training:
                ray.train.report(report.metrics)
                if written is None:
                    written = (
                        world.broadcast(lambda: len(folder.read_current_reports()))
                        - report.is_partial
                    )
                elif not report.is_partial:
                    written += 1
                # All ranks wait with rank 0, and end with it.
                if not world.broadcast(partial(_put, queue, (written, report.is_final), report)):
                    return
    except BaseException as error:
        # Ray cannot send every error of user code.
        raise RankFailed.from_error(world.rank, world.world_size, error) from None


def _put(queue: Any, ordinal: ReportOrdinal, report: Report) -> bool:
    return bool(ray.get(queue.put.remote(ordinal, report)))


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
    def bundles(workers: Workers) -> list[dict[str, float]]:
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
        from ray.train.torch import TorchTrainer

        workers = experiment.workers
        folder = RunFolder(assignment.location)
        is_elastic = workers.min_count < workers.max_count
        with ExitStack() as on_exit:
            on_exit.callback(lambda: ray.get(queue.close.remote()))
            on_exit.callback(remove_placement_group_of, folder)
            on_exit.callback(folder.storage.delete, SCRATCH)
            trainer = (without_extra_actors(TorchTrainer) if self._lean else TorchTrainer)(
                partial(train_and_report, queue),
                train_loop_config=assignment,
                scaling_config=ScalingConfig(
                    num_workers=(workers.min_count, workers.max_count)
                    if is_elastic
                    else workers.max_count,
                    use_gpu=bool(workers.gpu),
                    resources_per_worker=workers.bundle(),
                ),
                run_config=RunConfig(
                    # A new name for each attempt, so that Ray does not restore its own state of an
                    # earlier one.
                    name=f"ray-{uuid.uuid4().hex[:8]}",
                    storage_path=f"{folder.storage.root}/{SCRATCH}",
                    storage_filesystem=folder.storage.filesystem,
                    callbacks=[
                        OnFailure(assignment.mailbox, assignment.location, workers.max_count)
                    ],
                    failure_config=FailureConfig(
                        max_failures=experiment.max_failures,
                        controller_failure_limit=3 if self._lean else _MAX_FAILED_STARTS,
                    ),
                ),
            )
            try:
                trainer.fit()
            except TrainingFailedError as error:
                raise make_run_error(error, workers.max_count, folder) from error

    def next(self) -> Report | None:
        """Let the job train to its next report. Raises the job's failure after Train's own
        retries."""
        report: Report | None = ray.get(self._queue.next.remote())
        if report is None:
            assert self._job is not None
            self._job.result()
        return report

    def nodes(self) -> set[str]:
        """Return the ids of the nodes of its processes; any thread may call it."""
        group = self._run and _placement_group_of(self._run)
        return nodes_of(group) if group else set()

    def save(self) -> str:
        """Raise: the config refuses schedulers that pause trials."""
        raise NotImplementedError("engine: train does not pause trials")

    def end_run(self, run_index: int) -> None:
        """Raise: trials do not share a job."""
        raise NotImplementedError("engine: train makes each trial a job of its own")

    def end(self) -> None:
        """End the ranks where they are, and wait for the end of the job's processes."""
        if self._job is None:
            return
        ray.get(self._queue.end.remote())
        wait([self._job])
        self._job = self._queue = None


def remove_placement_group_of(run: RunFolder) -> None:
    """Free the resources of a job that has ended or was killed; Ray may hold them until the sweep's
    driver ends."""
    if group := _placement_group_of(run):
        remove_placement_group(group)
        run.storage.delete(_GROUP)


def _placement_group_of(run: RunFolder) -> PlacementGroup | None:
    if not run.storage.exists(_GROUP):
        return None
    return PlacementGroup(ray.PlacementGroupID.from_hex(run.storage.read(_GROUP).decode()))


class OnFailure(UserCallback):
    """Callback that ends a run after a user error, and reports other failures, after which Ray
    Train restarts it."""

    def __init__(self, mailbox: str | None, location: str, world_size: int) -> None:
        self._mailbox = mailbox
        self._location = location
        self._world_size = world_size

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the rank's failure if it is a user error."""
        failure = find_first_rank_failure(
            worker_exceptions, self._world_size, RunFolder(self._location)
        )
        if failure.is_user_error:
            raise failure
        self._show(failure)
        sleep(_RESTART_DELAY_S)

    def _show(self, failure: RankFailed) -> None:
        if self._mailbox is None:
            return
        with suppress(HookyardError, OSError, ValueError):
            line = format_failure_line(failure, RunFolder(self._location).read_attempts())
            ray.get_actor(self._mailbox).post.remote(("line", line))


def make_run_error(
    error: BaseException, world_size: int, folder: RunFolder | None = None
) -> RunError:
    """Return the error of the rank that failed first, without Ray's wrapping."""
    failures: dict[int, BaseException] = getattr(error, "worker_failures", {}) or {}
    if failures:
        return find_first_rank_failure(failures, world_size, folder)
    innermost = list(unwrap(error))[-1]
    lines = [line.strip() for line in str(innermost).splitlines() if line.strip()]
    return _find_rank_failure(error) or RunError(lines[-1] if lines else type(innermost).__name__)


def find_first_rank_failure(
    failures: Mapping[int, BaseException], world_size: int, folder: RunFolder | None = None
) -> RankFailed:
    """Return the failure that caused the others."""
    return find_root_failure(
        {
            rank: _find_rank_failure(failure) or RankFailed.died(rank, world_size, folder)
            for rank, failure in failures.items()
        }
    )


def _find_rank_failure(error: BaseException) -> RankFailed | None:
    """Return the RankFailed in the chain of causes, if there is one."""
    return next((link for link in unwrap(error) if isinstance(link, RankFailed)), None)
