"""The engine `train`: each trial is a Ray Train job of its own, with Train's fault tolerance."""

from __future__ import annotations

import asyncio
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
from orchestrator.engines.session import Assignment, reports
from orchestrator.engines.train_worker import fit, this_rank
from orchestrator.loop.report import Report
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import RunFolder

_GROUP = ".ray_placement_group"
"""Names, in the trial's folder, the places that its job holds."""

Place = tuple[int, bool]
"""Where in a trial a report stands: which it is of those that count, and whether it is the last. However often it is made,
and by however many ranks, it is the same."""

_BEFORE: Place = (-1, False)


class Relay:
    """Stands between a job and its trial: a rank that has made a report waits here until the trial asks for the next one.

    So a trial trains no further than the report it is judged by, and one that is stopped ends in order. An actor without
    a CPU of its own; asynchronous, as every rank of the job waits in it.
    """

    def __init__(self) -> None:
        self._made: asyncio.Queue[tuple[Place, Report] | None] = asyncio.Queue()
        self._moved = asyncio.Condition()
        self._told = self._taken = self._behind = _BEFORE
        self._ended = False

    async def wanted(self) -> bool:
        """Whether the trial is still to be trained."""
        return not self._ended

    async def made(self, place: Place, report: Report | None) -> bool:
        """A rank has made the report at a place, which rank 0 brings along; waits, and answers whether to go on.

        What was told before its worker group was replaced is not told again.
        """
        if report is not None and place > self._told:
            self._told = place
            self._made.put_nowait((place, report))
        async with self._moved:
            await self._moved.wait_for(lambda: self._ended or place <= self._behind)
        return not self._ended

    async def next(self) -> Report | None:
        """Lets the ranks go on from the last report taken; returns the next one, or None where there will be none."""
        async with self._moved:
            self._behind = self._taken
            self._moved.notify_all()
        made = await self._made.get()
        if made is None:
            await self.over()
            return None
        self._taken, report = made
        return report

    async def end(self) -> None:
        """Sends every rank home from where it waits."""
        async with self._moved:
            self._ended = True
            self._moved.notify_all()

    async def over(self) -> None:
        """The job has ended: there are no more reports."""
        self._made.put_nowait(None)


def _place(report: Report, trial: RunFolder) -> Place:
    """Where a report stands that has just been written down. Rank 0."""
    return len(counted_reports(trial.reports(), trial.attempts())), report.final


def train_and_relay(relay: Any, assignment: Assignment) -> None:
    """Trains as one rank of a trial's job, and asks after each report whether to go on. Ray Train worker."""
    from ray import train

    if not ray.get(relay.wanted.remote()):
        return
    world, trial = this_rank(), RunFolder(assignment.location)
    if world.is_master:
        trial.storage.write(_GROUP, get_current_placement_group().id.hex())
    try:
        with closing(reports(assignment, world)) as training:
            for report in training:
                train.report(report.metrics)
                place = world.broadcast(partial(_place, report, trial))
                if not ray.get(relay.made.remote(place, report if world.is_master else None)):
                    return
    except Exception as error:
        raise RankFailed.told(world.rank, error) from error


class TrainJobs:
    """Starts a Ray Train job for each trial and takes its reports one by one. In the trial's process, which waits and
    owns neither CPU nor GPU: the job's workers take theirs from the cluster."""

    def __init__(self, workers: Workers) -> None:
        # Where a cluster was joined, this process has the environment of its node.
        set_environment(None)
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train-job")
        self._relay: Any = None
        self._job: Future[None] | None = None

    @staticmethod
    def bundles(workers: Workers) -> list[dict[str, float]]:
        """Room for the trial's own process. Tune takes no empty bundle, so it is a byte of memory."""
        return [{"memory": 1}]

    def begin(self, assignment: Assignment, resolved: ResolvedExperiment) -> None:
        """Starts the job in a thread."""
        give_back(RunFolder(assignment.location))
        self._relay = ray.remote(Relay).options(num_cpus=0).remote()
        self._job = self._threads.submit(self._train, self._relay, assignment, resolved.experiment)

    @staticmethod
    def _train(relay: Any, assignment: Assignment, experiment: Experiment) -> None:
        try:
            fit(partial(train_and_relay, relay), assignment, experiment, lean=True)
        finally:
            give_back(RunFolder(assignment.location))
            ray.get(relay.over.remote())

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


def give_back(trial: RunFolder) -> None:
    """Frees the places of a job that is over or was killed: where Train could not, Ray would hold them until the sweep's
    driver ends. Driver, or the trial's process."""
    if not trial.storage.exists(_GROUP):
        return
    group = ray.PlacementGroupID.from_hex(trial.storage.read(_GROUP).decode())
    remove_placement_group(PlacementGroup(group))
    trial.storage.delete(_GROUP)
