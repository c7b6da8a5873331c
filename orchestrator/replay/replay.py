"""Replay of an iteration from the nearest checkpoint before it, on this machine, without Ray or
writing to the run."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hooks import Hook
from orchestrator import units
from orchestrator.disk.attempts import Attempt, make_lost_attempt_error
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.device import find_device
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.replay.rank_processes import convert_errors, train_in_processes, without_loggers
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.result import Run
from orchestrator.runs.sample_order import resolve_attempt
from orchestrator.storage import Storage
from orchestrator.tables.frames import load
from orchestrator.task import has_custom_loop
from orchestrator.units import format_count


@dataclass(frozen=True)
class Replay:
    """Result of a replay."""

    checkpoint: str | None
    """Checkpoint that it started from; None if it started from the beginning."""
    row: pd.DataFrame
    """Values that the iteration recorded on the rank: `stored`, `replayed`, and `same` if they are
    equal bit for bit. A failed iteration has no stored values."""
    threads: int
    """Number of torch threads of each rank."""
    losses: pd.DataFrame
    """`loss` and `loss_replayed` of all ranks and iterations since the checkpoint."""

    @property
    def is_identical(self) -> bool:
        """True if all losses equal the stored losses bit for bit."""
        return bool(_are_equal(self.losses["loss"], self.losses["loss_replayed"]).all())


@dataclass(frozen=True)
class _ReplayedRange:
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
            last_iteration=self.iteration,
        )
        return Loop(
            resolved.task,
            resolved.experiment,
            {**without_loggers(resolved.hooks), **hooks},
            context,
            origin=folder.read_metadata().init,
            resumes=self.checkpoint is not None,
        )


def replay(
    run: Run, iteration: int, rank: int = 0, hooks: Mapping[str, Hook] | None = None
) -> Replay:
    """Replay a run up to an iteration: one rank in this process, several in their own, with gloo on
    the CPU.

    `hooks` are added; they need a run with one rank. Raises UsageError if the run cannot be
    replayed, or if it has no row of the iteration and did not fail in it. Raises RunError if a rank
    fails.
    """
    folder = run.folder
    rows = run.load_stats(where=f"phase = 'train' and iteration = {iteration} and rank = {rank}")
    attempts = folder.read_attempts()
    attempt = _find_attempt(run, attempts, rows, iteration, rank)
    resolved = resolve_attempt(folder, attempt)
    _check_can_replay(folder, attempt, resolved, adds_hooks=bool(hooks))
    checkpoint, start = _find_checkpoint_before(folder, iteration)
    _check_same_setup_between(folder, attempts, attempt, start)

    threads = thread_count(resolved.experiment)
    with tempfile.TemporaryDirectory(prefix="hookyard-replay-") as rows_folder:
        span = _ReplayedRange(folder.location, attempt, checkpoint, iteration, rows_folder)
        if attempt.world_size == 1:
            world = World(device=find_device(resolved.experiment.workers))
            with torch_threads(threads), convert_errors(world):
                span.train(world, hooks)
        else:
            train_in_processes(span.train, attempt.world_size, threads)
        replayed = load(Storage(rows_folder), [], where=f"phase = 'train' and iteration > {start}")

    row = replayed[(replayed["rank"] == rank) & (replayed["iteration"] == iteration)].iloc[0]
    # A failed iteration has no stored values.
    stored_row = row.iloc[:0] if rows.empty else rows.iloc[0]
    condition = f"phase = 'train' and iteration > {start} and iteration <= {iteration}"
    stored = run.load_stats(["rank", "iteration", "loss"], condition)
    losses = _join_losses(stored, replayed)
    return Replay(checkpoint, _compare(stored_row, row), threads, losses)


def _join_losses(stored: pd.DataFrame, replayed: pd.DataFrame) -> pd.DataFrame:
    """Return the stored losses beside the replayed ones, by rank and iteration."""
    keys = ["rank", "iteration"]
    return stored.merge(replayed[[*keys, "loss"]], on=keys, how="left", suffixes=("", "_replayed"))


def _find_attempt(
    run: Run, attempts: Sequence[Attempt], rows: pd.DataFrame, iteration: int, rank: int
) -> Attempt:
    """Return the attempt of an iteration's rows, or the one that failed in it if there are none."""
    if rows.empty:
        return _find_failed_attempt(run, attempts, iteration, rank)
    number = int(rows["attempt"].iloc[0])
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    raise make_lost_attempt_error(run.folder.storage, number)


def _check_can_replay(
    folder: RunFolder, attempt: Attempt, resolved: ResolvedExperiment, *, adds_hooks: bool
) -> None:
    """Raise UsageError if the loop or the ranks of a run cannot be replayed."""
    if has_custom_loop(type(resolved.task)):
        raise UsageError(
            f"the task of {folder} has its own training loop, so the run cannot be replayed"
        )
    if attempt.world_size > 1 and (adds_hooks or resolved.experiment.workers.gpu):
        what = "a debugger or added hooks" if adds_hooks else "GPUs"
        raise UsageError(
            f"an iteration of {attempt.world_size} ranks can only be replayed without {what}"
        )


def _find_failed_attempt(
    run: Run, attempts: Sequence[Attempt], iteration: int, rank: int
) -> Attempt:
    """Return the attempt that failed in an iteration; raises UsageError if none did."""
    last = (
        run.rows(f"phase == 'train' and rank == {rank}")
        .aggregate({"last": "max(iteration)"})["last"]
        .max()
    )
    last = 0 if pd.isna(last) else int(last)
    attempts_with_rank = [attempt for attempt in attempts if rank < attempt.world_size]
    if attempts_with_rank and iteration == last + 1 and run.status == "failed":
        return attempts_with_rank[-1]
    ranks = max((attempt.world_size for attempt in attempts), default=1)
    if rank >= ranks:
        raise UsageError(
            f"{run.folder} has no rank {rank}; it had {format_count(ranks, 'rank')}, counted from 0"
        )
    place = f" on rank {rank}" if ranks > 1 else ""
    known = f"the last is {last}" if last else "none was recorded"
    raise UsageError(f"{run.folder} has no training row of iteration {iteration}{place}; {known}")


def _compare(stored: pd.Series, replayed: pd.Series) -> pd.DataFrame:
    """Return the numbers of a row that do not differ from run to run, stored and replayed."""
    row = stored if len(stored) else replayed
    numbers = []
    for name in row.index:
        has_number = units.is_number(stored.get(name)) or units.is_number(replayed.get(name))
        is_measured = units.get_unit(str(name))
        if (has_number or name == "loss") and not is_measured and name != "attempt":
            numbers.append(name)
    table = pd.DataFrame(
        {"stored": stored.reindex(numbers), "replayed": replayed.reindex(numbers)}
    ).rename_axis("number")
    return table.assign(same=_are_equal(table["stored"], table["replayed"]))


def _are_equal(first: pd.Series, second: pd.Series) -> pd.Series:
    return (first == second) | (first.isna() & second.isna())


def _find_checkpoint_before(folder: RunFolder, iteration: int) -> tuple[str | None, int]:
    """Return the last intact checkpoint before an iteration, and its iteration."""
    store = open_checkpoints(folder, is_master=False)
    for name in reversed(store.list_names()):
        try:
            start = store.read_position(name).iteration
            if start < iteration:
                store.verify(name)
                return name, start
        except CheckpointError:  # damaged, or deleted in the meantime
            continue
    return None, 0


def _check_same_setup_between(
    folder: RunFolder, attempts: Iterable[Attempt], last: Attempt, start: int
) -> None:
    """Raise UsageError if ranks or batches changed since the checkpoint, or if the initial
    checkpoint was deleted."""
    for attempt in attempts:
        is_between = attempt.number < last.number and start < last.position.iteration
        if is_between and (attempt.world_size, attempt.order) != (last.world_size, last.order):
            raise UsageError(
                f"the nearest checkpoint of {folder} is at iteration {start}, before ranks or batches changed at"
                f" {last.position.iteration}; keep more checkpoints (hooks.checkpoint.keep)"
            )
        if not start and attempt.number == 0 and attempt.checkpoint:
            raise UsageError(f"{folder} started from {attempt.checkpoint}, which has been deleted")
