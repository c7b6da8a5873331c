"""The training of the iterations to replay, on one rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hooks import Hook
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.experiment.load import to_dict
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import Limits, RunContext
from orchestrator.loop.world import World
from orchestrator.replay.rank_processes import without_loggers
from orchestrator.runs.attempt_experiment import resolve_attempt
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.storage import Storage


@dataclass(frozen=True, kw_only=True)
class ReplayedRange:
    """The iterations to replay. Picklable, for spawned ranks."""

    run: str
    attempt: Attempt
    checkpoint: str | None
    iteration: int
    rows: str
    """Folder for rows and files of hooks."""

    def train(self, world: World, hooks: Mapping[str, Hook] | None = None) -> None:
        """Replay the iterations on one rank. Raises UsageError if the run ends early."""
        folder = RunFolder(self.run)
        loop = self._make_loop(folder, world, hooks or {})
        if self.checkpoint:
            loop.restore(self.checkpoint)
        for _ in loop.run():
            pass
        if loop.state.iteration < self.iteration:
            raise UsageError(f"{folder} ends before iteration {self.iteration}")

    def _make_loop(self, folder: RunFolder, world: World, hooks: Mapping[str, Hook]) -> Loop:
        resolved = resolve_attempt(folder, self.attempt)
        identity = {"rank": world.rank, "node": world.node, "attempt": 0}
        context = RunContext(
            world=world,
            recorder=Recorder(Storage(self.rows), f"stats/attempt=0/rank={world.rank}", identity),
            store=open_checkpoints(folder, is_master=False),
            saves=False,
            artifacts=Path(self.rows),
            config={**to_dict(resolved.experiment), "sweep": None},
            name=folder.name,
            limits=Limits(last_iteration=self.iteration),
        )
        return Loop(
            resolved.task,
            resolved.experiment,
            {**without_loggers(resolved.hooks), **hooks},
            context,
            origin=folder.read_metadata().init,
            resumes=self.checkpoint is not None,
        )
