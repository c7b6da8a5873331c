"""Training split at the points at which ranks synchronize gradients, so that ranks can be compared
between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.doctor.robust_statistics import Floats
from orchestrator.units import SPANS

OWN_WORK = ("data_wait_s", "to_device_s", "forward_s", "loss_s", "optimizer_s")
"""Spans of a rank's own work, in which it does not wait for other ranks."""
MAY_WAIT = ("hooks_s", "checkpoint_s", "other_s")
"""Spans in which a rank may also wait for others, such as in a collective hook. The later spans are
the likelier."""
WAIT = "all_reduce_wait_s"
"""Span of the wait for other ranks. If it is not measured, `backward_s` contains the wait."""


@dataclass(frozen=True)
class GradientSyncs:
    """Spans of every rank between gradient synchronizations: arrays of shape (syncs, ranks), in
    seconds."""

    iterations: NDArray[np.int64]
    """Iteration of each sync."""
    ranks: tuple[int, ...]
    """Global rank of each column."""
    nodes: tuple[str, ...]
    local: dict[str, Floats]
    """Own work by span. It has `backward_s` only if that does not contain the wait."""
    wait: Floats
    """Measured wait; if there is none, `backward_s` minus the shortest of all ranks."""
    step: Floats
    has_several_iterations: bool
    """True if there are several iterations between syncs."""

    @cached_property
    def step_s(self) -> float:
        """Median time from one sync to the next."""
        return float(np.median(self.step))

    @cached_property
    def work(self) -> Floats:
        return self.sum_spans(self.local)

    def sum_spans(self, spans: Iterable[str]) -> Floats:
        total: Floats = sum((self.local[span] for span in spans), start=np.zeros_like(self.step))
        return total


def extract_gradient_syncs(stats: pd.DataFrame) -> GradientSyncs | None:
    """Return the syncs of a stats table, except the first; None if nothing was timed.

    Iterations that share an optimizer step have one sync. Syncs that are missing on a rank are left
    out, as are those whose step spans a gap in the iterations.
    """
    spans = [name for name in SPANS if name in stats and stats[name].notna().any()]
    if "step_s" not in stats or not spans:
        return None
    rows = stats.loc[
        stats["phase"] == "train",
        [name for name in ("rank", "node", "iteration", "step", "step_s", *spans) if name in stats],
    ]
    sync, has_several_iterations = _number_syncs(rows)
    ranks, rank_index = np.unique(rows["rank"].to_numpy(dtype=np.int64), return_inverse=True)
    numbers, sync_index = np.unique(sync, return_inverse=True)
    cell, shape = sync_index * len(ranks) + rank_index, (len(numbers), len(ranks))
    complete: NDArray[np.bool_] = np.all(
        np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape), axis=1
    )
    complete[np.flatnonzero(complete)[:1]] = False
    if has_several_iterations:
        iteration = rows["iteration"].to_numpy(dtype=np.int64)
        first, known = np.full(sync_index.max() + 1, iteration.max()), np.unique(iteration)
        np.minimum.at(first, sync_index, iteration)
        complete &= ~np.isin(first, known[np.flatnonzero(np.diff(known, prepend=-1) > 1)])
    if not complete.any():
        return None

    def reshape(name: str) -> Floats:
        seconds = np.nan_to_num(rows[name].to_numpy(dtype=float))
        return np.asarray(np.bincount(cell, seconds, shape[0] * shape[1]).reshape(shape)[complete])

    column = {name: reshape(name) for name in ("step_s", *spans)}
    backward = column.get("backward_s", np.zeros_like(column["step_s"]))
    # With FSDP, ranks wait in the collectives of the forward and backward passes, and hardly in
    # this span.
    is_measured = WAIT in column and np.median(column[WAIT]) > 0
    wait = column[WAIT] if is_measured else backward - backward.min(axis=1, keepdims=True)
    local = {name: column[name] for name in (*OWN_WORK, *MAY_WAIT) if name in column}
    if is_measured:
        local["backward_s"] = backward
    iterations = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(iterations, sync_index, rows["iteration"].to_numpy(dtype=np.int64))
    nodes = rows.groupby("rank")["node"].last() if "node" in rows else [""] * len(ranks)
    return GradientSyncs(
        iterations[complete],
        tuple(ranks.tolist()),
        tuple(map(str, nodes)),
        local,
        wait,
        column["step_s"],
        has_several_iterations,
    )


def _number_syncs(rows: pd.DataFrame) -> tuple[NDArray[np.int64], bool]:
    """Return the number of each row's sync, and True if there are several iterations between
    syncs."""
    if "step" not in rows or rows["step"].nunique() > 0.9 * rows["iteration"].nunique():
        return rows["iteration"].to_numpy(dtype=np.int64), False
    order = np.lexsort((rows["iteration"], rows["rank"]))
    in_order = rows[["rank", "step", "iteration"]].iloc[order]
    sync = np.empty(len(rows), dtype=np.int64)
    previous_step = in_order.groupby("rank")["step"].shift(1).fillna(in_order["step"])
    is_consecutive = in_order["iteration"].diff().abs() <= 1
    sync[order] = previous_step.where(is_consecutive, in_order["step"])
    return sync, True


def find_rank_with_max(values: "pd.Series[Any]") -> int:
    return int(values.index[int(np.nanargmax(values.to_numpy(dtype=float)))])
