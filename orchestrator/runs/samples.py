"""The samples of a run's batches, as a table. Does not need Ray."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from orchestrator.disk.attempts import Attempt, make_lost_attempt_error
from orchestrator.disk.rows.columns import ROW_KEY
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.randomness import keeping_random_state
from orchestrator.runs.sample_order import RankOrder, SampleOrder
from orchestrator.runs.stats import list_row_columns, load_rows, open_rows, restrict_phase
from orchestrator.units import format_count

_COLUMNS = ["attempt", "rank", "phase", "epoch"]
"""Columns whose values consecutive batches of a rank have in common."""


def load_samples(folder: RunFolder, where: str | None, rank: int | None) -> pd.DataFrame:
    """Return the samples of each batch whose row matches a condition, by default those of `train`,
    on all ranks or one.

    Raises UsageError if the task or its data has changed.
    """
    rows = _load_rows(folder, where, rank)
    attempts = _read_attempts(folder, rows)
    starts = _find_evaluation_starts(folder, rows)
    orders: dict[str, SampleOrder] = {}
    tables = []
    with keeping_random_state():
        for (number, rank_of_rows), rows_of_rank in _group(rows, ["attempt", "rank"]):
            attempt = attempts[number]
            settings = json.dumps(attempt.order and attempt.order.values)
            if settings not in orders:
                orders[settings] = SampleOrder.build(folder, attempt)
            order = orders[settings].of_rank(attempt, rank_of_rows)
            tables += [
                _locate_samples(order, phase, epoch, batches, starts)
                for (phase, epoch), batches in _group(rows_of_rank, ["phase", "epoch"])
            ]
    return _join(tables, rows)


def _load_rows(folder: RunFolder, where: str | None, rank: int | None) -> pd.DataFrame:
    """Return the rows of the batches, with what locates their samples, and the loss if it was
    recorded."""
    condition = restrict_phase(folder, where)
    if rank is not None:
        check_rank(folder, folder.read_attempts(), rank)
        is_rank = f"rank = {rank}"
        condition = is_rank if condition is None else f"{is_rank} and ({condition}\n)"
    recorded = list_row_columns(folder)
    value_columns = [name for name in ("loss", "samples", "batch_size") if name in recorded]
    rows = load_rows(folder, [*_COLUMNS, "iteration", *value_columns], condition)
    return rows.astype({"phase": "str"})


def check_rank(folder: RunFolder, attempts: Iterable[Attempt], rank: int) -> None:
    """Raise UsageError if a run has no such rank in any attempt."""
    ranks = max((attempt.world_size for attempt in attempts), default=1)
    if rank >= ranks:
        raise UsageError(
            f"{folder} has no rank {rank}; it had {format_count(ranks, 'rank')}, counted from 0"
        )


def _read_attempts(folder: RunFolder, rows: pd.DataFrame) -> dict[int, Attempt]:
    """Return the attempts by number; raises DamagedFile if one of the rows' attempts is lost."""
    attempts = {attempt.number: attempt for attempt in folder.read_attempts()}
    missing = sorted({*rows["attempt"]} - attempts.keys())
    if missing:
        raise make_lost_attempt_error(folder.storage, missing[0])
    return attempts


def _find_evaluation_starts(folder: RunFolder, rows: pd.DataFrame) -> Mapping[Any, int]:
    """Return the first iteration of each evaluation of each rank, by `_COLUMNS`."""
    if not (rows["phase"] != "train").any():
        return {}
    first = {"first": "min(iteration)"}
    evaluations = open_rows(folder).aggregate(first, _COLUMNS, "phase <> 'train'")
    starts: dict[Any, int] = evaluations["first"].to_dict()
    return starts


def _group(rows: pd.DataFrame, columns: list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows that have the same values in columns, after these values."""
    yield from rows.groupby(columns)


def _locate_samples(
    order: RankOrder, phase: str, epoch: int, batches: pd.DataFrame, starts: Mapping[Any, int]
) -> pd.DataFrame:
    """Return a row for each sample of consecutive batches of a rank, with its `index`, or its
    `position` in an iterable dataset."""
    iterations = batches["iteration"]
    if order.is_iterable(phase):
        return _explode(batches, "position", _find_positions(batches, phase))
    if phase == "train":
        indices = order.find_training_samples(epoch, iterations)
    else:
        start = starts[tuple(batches[_COLUMNS].iloc[0])]
        indices = order.find_evaluation_samples(phase, start, iterations)
    return _explode(batches, "index", indices)


def _find_positions(batches: pd.DataFrame, phase: str) -> list[list[int | None]]:
    """Return the positions of each batch's samples in an iterable dataset; None in an evaluation,
    where they are unknown."""
    if phase != "train":
        return [[None]] * len(batches)
    ends = zip(batches["samples"], batches["batch_size"], strict=True)
    return [[*range(end - size, end)] for end, size in ends]


def _explode(batches: pd.DataFrame, column: str, samples: list[Any]) -> pd.DataFrame:
    """Return a row for each sample. `samples` has those of each batch."""
    series = pd.Series(samples, batches.index, dtype=object)
    return batches.assign(**{column: series}).explode(column)


def _join(tables: list[pd.DataFrame], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of all batches, in the order of the rows."""
    table = rows[:0]
    if tables:
        table = pd.concat(tables).sort_index(kind="stable")
    kinds = {"index": "Int64"}
    if "position" in table:
        kinds["position"] = "Int64"
    columns = [*ROW_KEY, *kinds]
    if "loss" in table:
        columns.append("loss")
    return table.reindex(columns=columns).astype(kinds).reset_index(drop=True)
