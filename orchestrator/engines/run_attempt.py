"""An attempt of a run in this worker process: its record, and what it trains with. Used in workers."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Self

from orchestrator.disk.artifacts import Artifacts, open_artifacts
from orchestrator.disk.attempts import Attempt, rank_folder
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.experiment.load import to_dict
from orchestrator.loop.run_context import RunContext


@dataclass(frozen=True)
class RunAttempt:
    """An attempt of a run, which has begun on all ranks."""

    assigned: AssignedRun
    record: Attempt
    """The record in the run's folder with which the attempt began."""
    artifacts: Artifacts
    """The files that the run's hooks write."""

    @classmethod
    def begin(cls, assigned: AssignedRun, resources: ExitStack) -> Self:
        """Begin an attempt, and open the files that its hooks write, which `resources` closes;
        collective."""
        record = assigned.begin()
        world = assigned.world
        artifacts = open_artifacts(assigned.folder.storage, world.rank, world.world_size)
        resources.enter_context(closing(artifacts))
        return cls(assigned, record, artifacts)

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to restore. The record of an evaluation names none, because the checkpoint
        is one of its parent run."""
        target = self.assigned.assignment.target
        return target.checkpoint if target else self.record.checkpoint

    def make_context(self, stop_requested: Callable[[], bool]) -> RunContext:
        """Return the context in which the run trains; fetches the files that its hooks wrote in
        earlier attempts. `stop_requested` returns whether training should save and end."""
        if self.record.number:
            self.artifacts.fetch()
        assigned = self.assigned
        config = to_dict(assigned.resolved.experiment)
        return RunContext(
            world=assigned.world,
            recorder=self._make_recorder(),
            media=self._open_media(),
            store=assigned.store,
            artifacts=self.artifacts.folder,
            send_artifacts=self.artifacts.send,
            display=assigned.display,
            config={**config, "sweep": assigned.assignment.sweep},
            name=assigned.folder.name,
            stop_requested=stop_requested,
        )

    def _make_recorder(self) -> Recorder:
        assigned = self.assigned
        world = assigned.world
        attempt = self.record.number
        return Recorder(
            assigned.folder.storage,
            rank_folder(attempt, world.rank),
            {"rank": world.rank, "node": world.node, "attempt": attempt},
            upload_interval_s=assigned.resolved.experiment.upload_every,
        )

    def _open_media(self) -> MediaWriter:
        """Return the writer of rank 0, which continues where the checkpoint was saved."""
        assigned = self.assigned
        if not assigned.world.is_master:
            return MediaWriter()

        kept = 0
        if self.record.checkpoint:
            kept = assigned.store.read_manifest(self.record.checkpoint).get("media", 0)
        return MediaWriter(assigned.folder.storage, kept)
