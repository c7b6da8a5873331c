"""An attempt of one run that has begun in a worker process: its record, and the context in which it
trains."""

from collections.abc import Callable
from functools import cached_property

from orchestrator.disk.artifacts import Artifacts, open_artifacts
from orchestrator.disk.attempts import Attempt, LeadingAttempt, rank_folder
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.experiment.load import to_dict
from orchestrator.loop.run_context import RunContext


class RunAttempt:
    """An attempt of one run that has begun. Used in workers.

    `record` is what the run's folder says about it at the start. `AttemptRecorder` writes what
    happens from then on.
    """

    def __init__(self, assigned: AssignedRun, record: Attempt) -> None:
        self.assigned = assigned
        self.record = record

    @property
    def as_leader(self) -> LeadingAttempt:
        """This attempt, as the one that trains for others."""
        return LeadingAttempt(self.assigned.folder.name, self.record.number)

    @property
    def checkpoint(self) -> str | None:
        """Checkpoint from which the attempt continues."""
        target = self.assigned.assignment.target
        return target.checkpoint if target else self.record.checkpoint

    @cached_property
    def artifacts(self) -> Artifacts:
        """Files that hooks write."""
        world = self.assigned.world
        return open_artifacts(self.assigned.folder.storage, world.rank, world.world_size)

    def make_context(self, stop_requested: Callable[[], bool]) -> RunContext:
        """Return the context in which this run trains."""
        assigned = self.assigned
        folder = assigned.folder
        world = assigned.world
        number = self.record.number
        experiment = assigned.resolved.experiment
        if number:
            self.artifacts.fetch()
        recorder = Recorder(
            folder.storage,
            rank_folder(number, world.rank),
            {"rank": world.rank, "node": world.node, "attempt": number},
            upload_interval_s=experiment.upload_every,
        )
        return RunContext(
            world=world,
            recorder=recorder,
            media=self._open_media(),
            store=assigned.store,
            artifacts=self.artifacts.folder,
            send_artifacts=self.artifacts.send,
            display=assigned.display,
            config={**to_dict(experiment), "sweep": assigned.assignment.sweep},
            name=folder.name,
            stop_requested=stop_requested,
        )

    def _open_media(self) -> MediaWriter:
        """Return the writer of rank 0, which continues where the checkpoint was saved."""
        assigned = self.assigned
        if not assigned.world.is_master:
            return MediaWriter()
        checkpoint = self.record.checkpoint
        kept = assigned.store.read_manifest(checkpoint).get("media", 0) if checkpoint else 0
        return MediaWriter(assigned.folder.storage, kept)

    def close(self) -> None:
        """Remove the temporary folder of files that hooks wrote."""
        self.artifacts.close()
