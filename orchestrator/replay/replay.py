"""Replay of an iteration from the nearest checkpoint before it, on this machine, without Ray or
writing to the run."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hooks import Hook
from orchestrator import units
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.device import find_device
from orchestrator.errors import CheckpointError
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.world import World
from orchestrator.replay.preconditions import (
    check_can_replay,
    check_has_beginning,
    check_setup_since,
    find_attempt,
)
from orchestrator.replay.rank_processes import convert_errors, train_in_processes
from orchestrator.replay.replayed_range import ReplayedRange
from orchestrator.runs.attempt_experiment import resolve_attempt
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.result import Run
from orchestrator.storage import Storage
from orchestrator.tables.frames import load


@dataclass(frozen=True)
class Replay:
    """Result of a replay."""

    checkpoint: str | None
    """Checkpoint before the replayed iterations; None for the beginning of the run."""
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
    attempt = find_attempt(run, attempts, rows, iteration, rank)
    resolved = resolve_attempt(folder, attempt)
    check_can_replay(folder, attempt, resolved, adds_hooks=bool(hooks))
    checkpoint, start = _find_checkpoint_before(folder, iteration)
    if checkpoint is None:
        check_has_beginning(folder, attempts)
    check_setup_since(folder, attempts, attempt, start)

    threads = thread_count(resolved.experiment)
    with tempfile.TemporaryDirectory(prefix="hookyard-replay-") as rows_folder:
        replayed_range = ReplayedRange(
            run=folder.location,
            attempt=attempt,
            checkpoint=checkpoint,
            iteration=iteration,
            rows=rows_folder,
        )
        if attempt.world_size == 1:
            world = World(device=find_device(resolved.experiment.workers))
            with torch_threads(threads), convert_errors(world):
                replayed_range.train(world, hooks)
        else:
            train_in_processes(replayed_range.train, attempt.world_size, threads)
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
