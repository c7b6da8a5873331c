"""A worker of a Ray Train job: one rank, which waits for the driver after each report."""

from contextlib import closing
from functools import partial
from typing import Any

import ray
import ray.train
from ray.util.placement_group import get_current_placement_group

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.placement_groups import record_placement_group
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.engines.ray_data import data_of
from orchestrator.engines.ray_session import RaySession
from orchestrator.engines.report_queue import ReportOrdinal
from orchestrator.loop.report import Report
from orchestrator.loop.world import World


def train_and_report(queue: Any, assignment: Assignment) -> None:
    """Train one rank of a job until the run or the driver ends it. Runs in Ray Train's workers."""
    if not ray.get(queue.should_train.remote()):
        return
    world = _make_world()
    folder = RunFolder(assignment.location)
    if world.is_master:
        record_placement_group(folder, get_current_placement_group())

    sender = ReportSender(queue, world, folder)
    try:
        session = RaySession(assignment, world, data_of=partial(data_of, of_train=True))
        with closing(session.reports()) as reports:
            for report in reports:
                ray.train.report(report.metrics)
                if not sender.send(report):
                    return
    except BaseException as error:
        # Ray cannot send every error of user code.
        raise RankFailed.from_error(world.rank, world.world_size, error) from None


def _make_world() -> World:
    from ray.train.torch import get_device

    context = ray.train.get_context()
    return World(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        device=get_device(),
    )


class ReportSender:
    """Sends rank 0's reports to the driver, which decides after each whether training continues."""

    def __init__(self, queue: Any, world: World, folder: RunFolder) -> None:
        self._queue = queue
        self._world = world
        self._folder = folder
        self._completed_rounds: int | None = None
        """Reports of complete rounds in the run's folder; None before the first report."""

    def send(self, report: Report) -> bool:
        """Send a report, and return whether training continues; collective. All ranks wait with
        rank 0."""
        return bool(self._world.broadcast(partial(self._put, report)))

    def _put(self, report: Report) -> bool:
        if self._completed_rounds is None:
            # The session has already written this report.
            self._completed_rounds = len(self._folder.read_current_reports()) - 1
        if not report.is_partial:
            self._completed_rounds += 1
        ordinal = ReportOrdinal(self._completed_rounds, report.is_final)
        return bool(ray.get(self._queue.put.remote(ordinal, report)))
