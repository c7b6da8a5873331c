"""What a replay needs of a run: the attempt of the iteration, and ranks and batches that have not
changed since the checkpoint."""

from collections.abc import Sequence

import pandas as pd

from orchestrator.disk.attempts import Attempt, make_lost_attempt_error
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.experiment.resolve import ResolvedExperiment
from orchestrator.runs.result import Run
from orchestrator.runs.samples import check_rank
from orchestrator.task import has_custom_loop


def find_attempt(
    run: Run, attempts: Sequence[Attempt], rows: pd.DataFrame, iteration: int, rank: int
) -> Attempt:
    """Return the attempt of an iteration's rows, or the one that failed in it if there are none.

    Raises UsageError if the run has no such rank or iteration, and DamagedFile if the attempt's file
    is lost.
    """
    if rows.empty:
        check_rank(run.folder, attempts, rank)
        _check_failed_in(run, attempts, iteration, rank)
        return [attempt for attempt in attempts if rank < attempt.world_size][-1]
    number = int(rows["attempt"].iloc[0])
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    raise make_lost_attempt_error(run.folder.storage, number)


def _check_failed_in(run: Run, attempts: Sequence[Attempt], iteration: int, rank: int) -> None:
    """Raise UsageError unless the run failed in an iteration on a rank, which therefore has no
    row."""
    last = (
        run.rows(f"phase == 'train' and rank == {rank}")
        .aggregate({"last": "max(iteration)"})["last"]
        .max()
    )
    last = 0 if pd.isna(last) else int(last)
    if attempts and iteration == last + 1 and run.status == "failed":
        return
    has_several_ranks = any(attempt.world_size > 1 for attempt in attempts)
    place = f" on rank {rank}" if has_several_ranks else ""
    known = f"the last is {last}" if last else "none was recorded"
    raise UsageError(f"{run.folder} has no training row of iteration {iteration}{place}; {known}")


def check_can_replay(
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


def check_setup_since(
    folder: RunFolder, attempts: Sequence[Attempt], last: Attempt, start: int
) -> None:
    """Raise UsageError if ranks or batches changed between an iteration and the last attempt."""
    begin = last.position.iteration
    earlier = [attempt for attempt in attempts if attempt.number < last.number]
    for attempt in reversed(earlier):
        if begin <= start:
            return
        if attempt.position.iteration >= begin:  # later attempts have replaced all of its rows
            continue
        if (attempt.world_size, attempt.order) != (last.world_size, last.order):
            raise UsageError(
                f"the nearest checkpoint of {folder} is at iteration {start}, before ranks or batches changed at"
                f" {begin}; keep more checkpoints (hooks.checkpoint.keep)"
            )
        begin = attempt.position.iteration


def check_has_beginning(folder: RunFolder, attempts: Sequence[Attempt]) -> None:
    """Raise UsageError if the run began with a checkpoint, which it no longer has."""
    for attempt in attempts:
        if attempt.number == 0 and attempt.checkpoint:
            raise UsageError(f"{folder} started from {attempt.checkpoint}, which has been deleted")
