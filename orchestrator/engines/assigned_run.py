"""A run that is assigned to this worker process: its experiment, its checkpoints, and where it
continues."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial

import torch

from hooks.loop_services import Display
from orchestrator.disk.attempts import Attempt, Host
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, find_parent_checkpoints
from orchestrator.disk.checkpoints.listing import read_checkpoints
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.evaluations import get_evaluated_run
from orchestrator.disk.hang_reports import FOLDER as HANG_REPORTS
from orchestrator.disk.lease import delete_leftovers
from orchestrator.disk.media import count_media
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import Assignment
from orchestrator.errors import UsageError
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.world import World
from orchestrator.units import format_count

_log = logging.getLogger("hookyard")


class AssignedRun:
    """A run that this worker process is to train or evaluate. Used in workers.

    `resolved` is the assignment's experiment, if already resolved.
    """

    def __init__(
        self,
        assignment: Assignment,
        world: World,
        display: Display | None,
        resolved: ResolvedExperiment | None = None,
    ) -> None:
        self.assignment = assignment
        self.world = world
        self.folder = RunFolder(assignment.location)
        self.display = display
        self._already_resolved = resolved

    @cached_property
    def resolved(self) -> ResolvedExperiment:
        return self._already_resolved or resolve(self.assignment.source)

    @cached_property
    def store(self) -> CheckpointStore:
        """The run's checkpoints; an evaluation uses those of its parent run."""
        if self.assignment.target:
            parent = get_evaluated_run(self.folder)
            return CheckpointStore(find_checkpoint_folder(parent), parent.name, is_master=False)
        hooks = self.resolved.experiment.hooks
        checkpoints = find_checkpoint_folder(self.folder, {"hooks": hooks})
        return CheckpointStore(checkpoints, self.folder.name, self.world.is_master)

    def prepare_checkpoints(self) -> None:
        """Remove what a killed process left behind among the checkpoints, which an evaluation does
        not own; collective. Raises UsageError if they belong to an earlier run."""
        if self.assignment.target is None:
            self.world.broadcast(self._recover_own_checkpoints)

    def _recover_own_checkpoints(self) -> None:
        store = self.store
        store.recover()
        # An `out_dir` is outside the folder that the driver cleans.
        delete_leftovers(store.storage)
        if self.folder.read_attempts():
            return

        given = self._find_given_checkpoint()
        manifests, _ = read_checkpoints(store.storage)
        foreign = [
            name
            for name, manifest in manifests.items()
            if given is None or manifest.get("copied_from") != given
        ]
        if foreign:
            raise UsageError(
                f"{store.get_path(foreign[-1])} belongs to an earlier run; move it away, or choose"
                " another out_dir or name"
            )

    def _find_given_checkpoint(self) -> str | None:
        """Return the path of the other run's checkpoint that the run begins with. Before its first
        attempt, the run may have nothing but copies of it."""
        parent = self.assignment.source.continued_from
        if parent is None:
            return self.assignment.checkpoint
        return f"{find_parent_checkpoints(self.folder, parent).path}/{parent.checkpoint}"

    def begin(self) -> Attempt:
        """Begin an attempt at the assignment's checkpoint or the newest one; return its record.
        Collective."""
        world = self.world
        host = Host(
            rank=world.rank,
            node=world.node,
            local_rank=world.local_rank,
            device=str(world.device),
            torch=torch.__version__,
            threads=torch.get_num_threads(),
        )
        hosts = world.gather(host)
        checkpoint = None if self.assignment.target else self._choose_checkpoint()
        record: Attempt = world.broadcast(partial(self._record_start, checkpoint, hosts))
        return record

    def _choose_checkpoint(self) -> str | None:
        """Return the checkpoint to continue from."""
        store = self.store
        world = self.world
        if self.assignment.checkpoint is None:
            latest = store.find_latest(world)
            self._show_skipped(latest.skip_reasons)
            return latest.name
        checkpoint: str = world.broadcast(partial(self._reset_to, self.assignment.checkpoint))
        return checkpoint

    def _reset_to(self, path: str) -> str:
        return self.store.reset_to(path, media=count_media(self.folder.storage))

    def _show_skipped(self, reasons: Sequence[str]) -> None:
        for reason in reasons:
            if self.display is not None:
                self.display.line(f"left out: {reason}")
            elif self.world.is_master:
                _log.warning("left out: %s", reason)

    def _record_start(self, checkpoint: str | None, hosts: Sequence[Host]) -> Attempt:
        """Record the start, and show where the run continues. Called on rank 0."""
        folder = self.folder
        folder.storage.delete(HANG_REPORTS)
        position = self.store.read_position(checkpoint) if checkpoint else None
        attempt = folder.begin_attempt(checkpoint, position, hosts, len(hosts))
        if self.display is not None and attempt.number:
            self.display.line(_describe_resume(checkpoint, hosts))
        return attempt


def _describe_resume(checkpoint: str | None, hosts: Sequence[Host]) -> str:
    start = "Started from scratch (no checkpoint)"
    if checkpoint:
        start = f"Resumed from {checkpoint}"
    nodes = ", ".join(dict.fromkeys(host.node for host in hosts))
    return f"{start} with {format_count(len(hosts), 'rank')} on {nodes}"
