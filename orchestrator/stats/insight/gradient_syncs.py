"""GradientSyncs: training as the ranks did it together, from one exchange of gradients to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.stats.aggregate.spans import SPANS
from orchestrator.stats.insight.robust_statistics import Floats

OWN_WORK = ("data_wait_s", "to_device_s", "forward_s", "loss_s", "optimizer_s")
"""Spans of own work, without waiting for other ranks."""
MAY_WAIT = ("hooks_s", "checkpoint_s", "other_s")
"""Spans in which a rank may also wait for others, such as in a collective hook; the later the likelier."""
WAIT = "all_reduce_wait_s"
"""The span of waiting for other ranks; if it is not measured, `backward_s` contains the wait."""


@dataclass(frozen=True)
class GradientSyncs:
    """The spans of every rank between exchanges of gradients, in arrays of shape (exchanges, ranks), in seconds."""

    iterations: NDArray[np.int64]
    """Last iteration of each exchange."""
    ranks: tuple[int, ...]
    """Global ranks, by column."""
    nodes: tuple[str, ...]
    local: dict[str, Floats]
    """Own work by span; `backward_s` only if it does not contain the wait."""
    wait: Floats
    """Measured wait, otherwise `backward_s` above the shortest of all ranks."""
    step: Floats
    steps_apart: bool
    """True if an exchange takes several iterations."""

    @cached_property
    def step_s(self) -> float:
        """Median time from one exchange to the next."""
        return float(np.median(self.step))

    @cached_property
    def work(self) -> Floats:
        return self.sum_spans(self.local)

    def sum_spans(self, spans: Iterable[str]) -> Floats:
        total: Floats = sum((self.local[span] for span in spans), start=np.zeros_like(self.step))
        return total


def gradient_syncs(stats: pd.DataFrame) -> GradientSyncs | None:
    """Return the exchanges of a stats table but the first; None if nothing was timed.

    Iterations that share an optimizer step form one exchange. Omits exchanges that some rank lacks, and steps that
    begin before a gap in the iterations.
    """
    spans = [name for name in SPANS if name in stats and stats[name].notna().any()]
    if "step_s" not in stats or not spans:
        return None
    rows = stats.loc[
        stats["phase"] == "train",
        [name for name in ("rank", "node", "iteration", "step", "step_s", *spans) if name in stats],
    ]
    exchange, steps_apart = _exchange_of(rows)
    ranks, rank_index = np.unique(rows["rank"].to_numpy(dtype=np.int64), return_inverse=True)
    numbers, exchange_index = np.unique(exchange, return_inverse=True)
    cell, shape = exchange_index * len(ranks) + rank_index, (len(numbers), len(ranks))
    complete: NDArray[np.bool_] = np.all(np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape), axis=1)
    complete[np.flatnonzero(complete)[:1]] = False
    if steps_apart:
        complete &= ~_cut(rows["iteration"].to_numpy(dtype=np.int64), exchange_index)
    if not complete.any():
        return None

    def wide(name: str) -> Floats:
        seconds = np.nan_to_num(rows[name].to_numpy(dtype=float))
        return np.asarray(np.bincount(cell, seconds, shape[0] * shape[1]).reshape(shape)[complete])

    column = {name: wide(name) for name in ("step_s", *spans)}
    backward = column.get("backward_s", np.zeros_like(column["step_s"]))
    # Ranks that share out their parameters wait in collectives of the passes themselves, and hardly in this span.
    measured = WAIT in column and np.median(column[WAIT]) > 0
    wait = column[WAIT] if measured else backward - backward.min(axis=1, keepdims=True)
    local = {name: column[name] for name in (*OWN_WORK, *MAY_WAIT) if name in column}
    if measured:
        local["backward_s"] = backward
    iterations = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(iterations, exchange_index, rows["iteration"].to_numpy(dtype=np.int64))
    nodes = rows.groupby("rank")["node"].last() if "node" in rows else [""] * len(ranks)
    return GradientSyncs(
        iterations[complete],
        tuple(ranks.tolist()),
        tuple(map(str, nodes)),
        local,
        wait,
        column["step_s"],
        steps_apart,
    )


def _cut(iteration: NDArray[np.int64], exchange_index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which exchanges begin at the first iteration after a gap."""
    first = np.full(exchange_index.max() + 1, iteration.max())
    np.minimum.at(first, exchange_index, iteration)
    known = np.unique(iteration)
    return np.isin(first, known[np.flatnonzero(np.diff(known, prepend=-1) > 1)])


def _exchange_of(rows: pd.DataFrame) -> tuple[NDArray[np.int64], bool]:
    """Return the exchange of each row, and whether one takes several iterations."""
    if "step" not in rows or rows["step"].nunique() > 0.9 * rows["iteration"].nunique():
        return rows["iteration"].to_numpy(dtype=np.int64), False
    order = np.lexsort((rows["iteration"], rows["rank"]))
    in_order = rows[["rank", "step", "iteration"]].iloc[order]
    exchange = np.empty(len(rows), dtype=np.int64)
    before = in_order.groupby("rank")["step"].shift(1).fillna(in_order["step"])
    follows = in_order["iteration"].diff().abs() <= 1
    exchange[order] = before.where(follows, in_order["step"])
    return exchange, True


def rank_of_most(values: pd.Series[Any]) -> int:
    return int(values.index[int(np.nanargmax(values.to_numpy(dtype=float)))])
