"""Training split at the points at which ranks synchronize gradients, so that ranks can be compared
between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.column_names import SPANS
from orchestrator.doctor.robust_statistics import Floats

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
    """Return the syncs of training rows, except the first; None if nothing was timed.

    Iterations that share an optimizer step have one sync. Syncs that are missing on a rank are left
    out, as are those whose step spans a gap in the iterations, and ranks that trained in less than
    half of the iterations, as after a change of their number.
    """
    spans = [name for name in SPANS if name in stats and stats[name].notna().any()]
    if "step_s" not in stats or not spans:
        return None
    columns = ("rank", "node", "iteration", "step", "step_s", *spans)
    rows = _drop_absent_ranks(stats[[name for name in columns if name in stats]])
    grid = _SyncGrid.make(rows)
    if not grid.is_compared.any():
        return None

    step = grid.sum("step_s")
    seconds = {name: grid.sum(name) for name in spans}
    backward = seconds.get("backward_s", np.zeros_like(step))
    # With FSDP, ranks wait in the collectives of the forward and backward passes, and hardly in
    # this span.
    is_measured = WAIT in seconds and np.median(seconds[WAIT]) > 0
    wait = seconds[WAIT] if is_measured else backward - backward.min(axis=1, keepdims=True)
    local = {name: seconds[name] for name in (*OWN_WORK, *MAY_WAIT) if name in seconds}
    if is_measured:
        local["backward_s"] = backward
    nodes = rows.groupby("rank")["node"].last() if "node" in rows else [""] * len(grid.ranks)
    return GradientSyncs(
        grid.last_iterations[grid.is_compared],
        tuple(grid.ranks.tolist()),
        tuple(map(str, nodes)),
        local,
        wait,
        step,
        grid.has_several_iterations,
    )


def _drop_absent_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the ranks that have at least half as many as any other."""
    counts = rows["rank"].value_counts()
    is_absent = counts < counts.max() / 2
    return rows[rows["rank"].map(~is_absent)] if is_absent.any() else rows


@dataclass(frozen=True)
class _SyncGrid:
    """The place of each row in an array of shape (syncs, ranks)."""

    rows: pd.DataFrame
    ranks: NDArray[np.int64]
    sync_index: NDArray[np.int64]
    """Sync of each row."""
    rank_index: NDArray[np.int64]
    """Rank of each row."""
    n_syncs: int
    has_several_iterations: bool

    @classmethod
    def make(cls, rows: pd.DataFrame) -> "_SyncGrid":
        sync, has_several_iterations = _number_syncs(rows)
        ranks, rank_index = np.unique(rows["rank"].to_numpy(dtype=np.int64), return_inverse=True)
        numbers, sync_index = np.unique(sync, return_inverse=True)
        return cls(rows, ranks, sync_index, rank_index, len(numbers), has_several_iterations)

    @cached_property
    def is_compared(self) -> NDArray[np.bool_]:
        """True for syncs that every rank has, except the first; and that have all iterations."""
        is_complete: NDArray[np.bool_] = np.all(self._add_up() > 0, axis=1)
        is_complete[np.flatnonzero(is_complete)[:1]] = False
        if self.has_several_iterations and len(self.rows):
            iterations = np.unique(self._iterations)
            after_gap = iterations[np.flatnonzero(np.diff(iterations, prepend=-1) > 1)]
            is_complete &= ~np.isin(self._first_iterations, after_gap)
        return is_complete

    @property
    def last_iterations(self) -> NDArray[np.int64]:
        last = np.zeros(self.n_syncs, dtype=np.int64)
        np.maximum.at(last, self.sync_index, self._iterations)
        return last

    @property
    def _first_iterations(self) -> NDArray[np.int64]:
        first = np.full(self.n_syncs, self._iterations.max())
        np.minimum.at(first, self.sync_index, self._iterations)
        return first

    @cached_property
    def _iterations(self) -> NDArray[np.int64]:
        return self.rows["iteration"].to_numpy(dtype=np.int64)

    def sum(self, name: str) -> Floats:
        """Return the seconds of a column in each compared sync on each rank."""
        seconds = np.nan_to_num(self.rows[name].to_numpy(dtype=float))
        return self._add_up(seconds)[self.is_compared]

    def _add_up(self, seconds: Floats | None = None) -> Floats:
        """Return the sum of the rows' seconds in each cell, or the number of rows."""
        cells = self.sync_index * len(self.ranks) + self.rank_index
        sums = np.bincount(cells, seconds, self.n_syncs * len(self.ranks))
        return np.asarray(sums, dtype=float).reshape(self.n_syncs, len(self.ranks))


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
