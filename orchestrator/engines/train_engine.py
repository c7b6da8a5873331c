"""The engine `train`: each run is a Ray Train job of its own, with Train's fault tolerance."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group, remove_placement_group

from orchestrator.config.experiment import Experiment, Workers
from orchestrator.config.resolve import ResolvedExperiment
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_environment import set_environment
from orchestrator.engines.relay import Relay, ReportOrdinal
from orchestrator.engines.session import Assignment, Session
from orchestrator.engines.train_worker import fit, this_rank
from orchestrator.loop.report import Report
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import RunFolder

_GROUP = ".ray_placement_group"
"""Names, in the run's folder, the places that its job holds."""


def train_and_relay(relay: Any, assignment: Assignment) -> None:
    """Trains as one rank of a run's job, and asks after each report whether to go on. Ray Train worker."""
    from ray import train

    if not ray.get(relay.wanted.remote()):
        return
    world, folder = this_rank(), RunFolder(assignment.location)
    if world.is_master:
        folder.storage.write(_GROUP, get_current_placement_group().id.hex())
    before = 0
    try:
        with closing(Session(assignment, world).reports()) as training:
            for number, report in enumerate(training):
                train.report(report.metrics)
                written = not report.cut_short
                if number == 0:
                    before = world.broadcast(partial(_count, folder)) - written
                place = before + number + written, report.final
                # All ranks wait with rank 0, and end with it.
                if not world.broadcast(partial(_go_on, relay, place, report)):
                    return
    except Exception as error:
        raise RankFailed.from_error(world.rank, error) from error


def _count(folder: RunFolder) -> int:
    return len(counted_reports(folder.reports(), folder.attempts()))


def _go_on(relay: Any, ordinal: ReportOrdinal, report: Report) -> bool:
    return bool(ray.get(relay.put.remote(ordinal, report)))


class TrainJobs:
    """Starts a Ray Train job for each run and takes its reports one by one. In a trial's process or a run's driver, which
    waits and owns neither CPU nor GPU: the job's workers take theirs from the cluster.

    `lean` where Ray ends with whoever drives this, who also sees to what a lost one leaves.
    """

    def __init__(self, workers: Workers, *, lean: bool = True) -> None:
        # Where a cluster was joined, this process has the environment of its node.
        set_environment(None)
        self._lean = lean
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train-job")
        self._relay: Any = None
        self._job: Future[None] | None = None

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """Room for the trial's own process. Tune takes no empty bundle, so it is a byte of memory."""
        return [{"memory": 1}]

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment) -> None:
        """Starts the job in a thread. A run's mailbox is its relay too."""
        give_back(RunFolder(assignment.location))
        self._relay = ray.get_actor(assignment.mailbox) if assignment.mailbox else ray.remote(Relay).options(num_cpus=0).remote()
        self._job = self._threads.submit(self._train, self._relay, assignment, resolved.experiment)

    def _train(self, relay: Any, assignment: Assignment, experiment: Experiment) -> None:
        try:
            fit(partial(train_and_relay, relay), assignment, experiment, lean=self._lean)
        finally:
            give_back(RunFolder(assignment.location))
            ray.get(relay.close.remote())

    def next(self) -> Report | None:
        """Lets the job train up to its next report; raises what the job failed with, Train's own retries behind it."""
        report: Report | None = ray.get(self._relay.next.remote())
        if report is None:
            assert self._job is not None
            self._job.result()
        return report

    def save(self) -> str:
        """Never asked for: the schedulers that pause trials are refused with this engine."""
        raise NotImplementedError("engine: train does not pause trials")

    def end(self) -> None:
        """Lets the ranks end where they stand, and waits until the job's processes are gone."""
        if self._job is None:
            return
        ray.get(self._relay.end.remote())
        wait([self._job])
        self._job = self._relay = None


def give_back(run: RunFolder) -> None:
    """Frees the places of a job that is over or was killed: where Train could not, Ray would hold them until the sweep's
    driver ends. Driver, or the trial's process."""
    if not run.storage.exists(_GROUP):
        return
    group = ray.PlacementGroupID.from_hex(run.storage.read(_GROUP).decode())
    remove_placement_group(PlacementGroup(group))
    run.storage.delete(_GROUP)
