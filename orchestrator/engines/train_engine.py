"""The engine `train`: each run is a Ray Train job of its own, with Train's fault tolerance."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.util.placement_group import PlacementGroup, get_current_placement_group, remove_placement_group

from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.workers import Workers
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_data import data_of
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.report_queue import ReportOrdinal, ReportQueue
from orchestrator.engines.session import Assignment, Session
from orchestrator.engines.train_failures import OnFailure, first_failure
from orchestrator.loop.report import Report
from orchestrator.loop.world import World
from orchestrator.private_api.ray_train import without_extra_actors
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import RunFolder

_GROUP = ".ray_placement_group"
"""Names, in the run's folder, the places that its job holds."""

SCRATCH = ".ray"
"""What Ray Train keeps while a run goes on, in the run's folder."""

_STARTS = 60
"""How often Ray Train waits a minute for room on a cluster, where a host may come back and an autoscaler takes its
time."""


def train_and_report(queue: Any, assignment: Assignment) -> None:
    """Trains as one rank of a run's job, and asks after each report whether to go on. Ray Train worker."""
    if not ray.get(queue.wanted.remote()):
        return
    world, folder = this_rank(), RunFolder(assignment.location)
    if world.is_master:
        folder.storage.write(_GROUP, get_current_placement_group().id.hex())
    before = 0
    try:
        with closing(Session(assignment, world, data_of=partial(data_of, of_train=True)).reports()) as training:
            for number, report in enumerate(training):
                ray.train.report(report.metrics)
                written = not report.cut_short
                if number == 0:
                    counted = world.broadcast(lambda: len(counted_reports(folder.reports(), folder.attempts())))
                    before = counted - written
                place = before + number + written, report.final
                # All ranks wait with rank 0, and end with it.
                if not world.broadcast(partial(_go_on, queue, place, report)):
                    return
    except BaseException as error:
        raise RankFailed.from_error(world.rank, error) from None  # Ray cannot send every text that user code raises


def this_rank() -> World:
    """Where this worker stands in its group. Ray Train worker."""
    from ray.train.torch import get_device

    context = ray.train.get_context()
    return World(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        device=get_device(),
    )


def _go_on(queue: Any, ordinal: ReportOrdinal, report: Report) -> bool:
    return bool(ray.get(queue.put.remote(ordinal, report)))


class TrainJobs:
    """Starts a Ray Train job for each run and takes its reports one by one. In a trial's process or a run's driver,
    which waits and owns neither CPU nor GPU: the job's workers take theirs from the cluster.

    `lean` where Ray ends with whoever drives this, who also sees to what a lost one leaves.
    """

    def __init__(self, workers: Workers, *, lean: bool = True) -> None:
        # Where a cluster was joined, this process has the environment of its node.
        set_environment(None)
        self._lean = lean
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train-job")
        self._queue: Any = None
        self._job: Future[None] | None = None

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """Room for the trial's own process. Tune takes no empty bundle, so it is a byte of memory."""
        return [{"memory": 1}]

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment | None) -> None:
        """Starts the job in a thread. A run's mailbox is its queue too."""
        remove_placement_group_of(RunFolder(assignment.location))
        self._queue = (
            ray.get_actor(assignment.mailbox)
            if assignment.mailbox
            else ray.remote(ReportQueue).options(num_cpus=0).remote()
        )
        experiment = (resolved or resolve(assignment.source)).experiment
        self._job = self._threads.submit(self._train, self._queue, assignment, experiment)

    def _train(self, queue: Any, assignment: Assignment, experiment: Experiment) -> None:
        try:
            fit(partial(train_and_report, queue), assignment, experiment, lean=self._lean)
        finally:
            remove_placement_group_of(RunFolder(assignment.location))
            ray.get(queue.close.remote())

    def next(self) -> Report | None:
        """Lets the job train up to its next report; raises what the job failed with, Train's own retries behind it."""
        report: Report | None = ray.get(self._queue.next.remote())
        if report is None:
            assert self._job is not None
            self._job.result()
        return report

    def save(self) -> str:
        """Never asked for: the schedulers that pause trials are refused with this engine."""
        raise NotImplementedError("engine: train does not pause trials")

    def drop(self, member: int) -> None:
        """Never asked for: no trials share a job."""
        raise NotImplementedError("engine: train makes each trial a job of its own")

    def end(self) -> None:
        """Lets the ranks end where they stand, and waits until the job's processes are gone."""
        if self._job is None:
            return
        ray.get(self._queue.end.remote())
        wait([self._job])
        self._job = self._queue = None


def fit(train: Callable[[Assignment], None], assignment: Assignment, experiment: Experiment, *, lean: bool) -> None:
    """Starts the worker group, and starts it again from its last checkpoint when a worker dies; blocks. Driver, or the
    process of a sweep's trial.

    `lean` is for those who see themselves to what a lost driver leaves: Ray's own actors for that are not started.
    Raises RunError with the first failing rank's own words; at once where it failed by a mistake in the experiment.
    """
    from ray.train.torch import TorchTrainer

    workers = experiment.workers
    folder = RunFolder(assignment.location)
    trainer = (without_extra_actors(TorchTrainer) if lean else TorchTrainer)(
        train,
        train_loop_config=assignment,
        scaling_config=ScalingConfig(
            num_workers=(workers.min_count, workers.max_count)
            if workers.min_count < workers.max_count
            else workers.max_count,
            use_gpu=bool(workers.gpu),
            resources_per_worker=workers.bundle(),
        ),
        run_config=RunConfig(
            # A name of its own for each driver: Ray would take up its own notes of an earlier one, and ours decide.
            name=f"ray-{uuid.uuid4().hex[:8]}",
            storage_path=f"{folder.storage.root}/{SCRATCH}",
            storage_filesystem=folder.storage.filesystem,
            callbacks=[OnFailure(assignment.mailbox, assignment.location)],
            failure_config=FailureConfig(
                max_failures=experiment.max_failures, controller_failure_limit=3 if lean else _STARTS
            ),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise first_failure(error, folder) from error
    finally:
        folder.storage.delete(SCRATCH)


def remove_placement_group_of(run: RunFolder) -> None:
    """Frees the places of a job that is over or was killed: where Train could not, Ray would hold them until the
    sweep's driver ends. Driver, or the trial's process."""
    if not run.storage.exists(_GROUP):
        return
    group = ray.PlacementGroupID.from_hex(run.storage.read(_GROUP).decode())
    remove_placement_group(PlacementGroup(group))
    run.storage.delete(_GROUP)
