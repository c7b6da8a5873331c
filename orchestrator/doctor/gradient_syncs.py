"""Training split at the points at which ranks synchronize gradients, so that ranks can be compared
between them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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

    Iterations that share an optimizer step have one sync. Syncs of which a rank lacks an iteration
    are left out, so the step that is now running is too. So are ranks that trained in less than half
    of the iterations, as after a change of their number.
    """
    spans = [name for name in SPANS if name in stats and stats[name].notna().any()]
    if "step_s" not in stats or not spans:
        return None
    columns = ("rank", "node", "iteration", "step", "step_s", *spans)
    rows = _drop_absent_ranks(stats[[name for name in columns if name in stats]])
    rows = rows.sort_values(["rank", "iteration"])
    grid = _SyncGrid.make(rows)
    if not grid.is_complete.any():
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
        iterations=grid.last_iterations,
        ranks=tuple(grid.ranks.tolist()),
        nodes=tuple(map(str, nodes)),
        local=local,
        wait=wait,
        step=step,
        has_several_iterations=grid.has_several_iterations,
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
    """Rows in the order of their ranks and iterations."""
    ranks: NDArray[np.int64]
    numbers: NDArray[np.int64]
    """Number of each sync: its iteration, or the optimizer steps before it if those have several
    iterations."""
    sync_index: NDArray[np.int64]
    """Sync of each row."""
    rank_index: NDArray[np.int64]
    """Rank of each row."""
    has_several_iterations: bool

    @classmethod
    def make(cls, rows: pd.DataFrame) -> "_SyncGrid":
        has_several_iterations = _have_several_iterations(rows)
        number = _count_steps_before(rows) if has_several_iterations else rows["iteration"]
        ranks, rank_index = np.unique(rows["rank"].to_numpy(dtype=np.int64), return_inverse=True)
        numbers, sync_index = np.unique(number.to_numpy(dtype=np.int64), return_inverse=True)
        return cls(rows, ranks, numbers, sync_index, rank_index, has_several_iterations)

    @cached_property
    def is_complete(self) -> NDArray[np.bool_]:
        """True for syncs of which every rank has all iterations, except the first."""
        is_complete: NDArray[np.bool_] = np.all(self._count_rows() > 0, axis=1)
        is_complete[np.flatnonzero(is_complete)[:1]] = False
        if self.has_several_iterations:
            is_after_gap = ~_follow_each_other(self.rows)
            n_gaps = self._add_up(np.asarray(is_after_gap, dtype=float))
            is_complete &= np.all(n_gaps == 0, axis=1) & np.all(self._have_ended(), axis=1)
        return is_complete

    @property
    def last_iterations(self) -> NDArray[np.int64]:
        """Last iteration of each complete sync."""
        last = np.zeros(len(self.numbers), dtype=np.int64)
        np.maximum.at(last, self.sync_index, self.rows["iteration"].to_numpy(dtype=np.int64))
        return last[self.is_complete]

    def sum(self, name: str) -> Floats:
        """Return the seconds of a column in each complete sync on each rank."""
        seconds = np.nan_to_num(self.rows[name].to_numpy(dtype=float))
        return self._add_up(seconds)[self.is_complete]

    def _have_ended(self) -> NDArray[np.bool_]:
        """Return whether the last row of each sync on each rank counts its optimizer step."""
        steps = np.full(len(self.numbers) * len(self.ranks), -1, dtype=np.int64)
        np.maximum.at(steps, self._cells, self.rows["step"].to_numpy(dtype=np.int64))
        have_ended: NDArray[np.bool_] = self._make_grid(steps) > self.numbers[:, np.newaxis]
        return have_ended

    def _count_rows(self) -> Floats:
        return self._add_up(np.ones(len(self.rows)))

    def _add_up(self, values: Floats) -> Floats:
        """Return the sum of the rows' values in each cell."""
        n_cells = len(self.numbers) * len(self.ranks)
        sums: Floats = self._make_grid(np.bincount(self._cells, values, n_cells))
        return sums

    def _make_grid(self, cells: NDArray[Any]) -> NDArray[Any]:
        return cells.reshape(len(self.numbers), len(self.ranks))

    @cached_property
    def _cells(self) -> NDArray[np.int64]:
        """Cell of each row, numbered row by row of the grid."""
        return self.sync_index * len(self.ranks) + self.rank_index


def _have_several_iterations(rows: pd.DataFrame) -> bool:
    """Return whether optimizer steps have several iterations.

    With mixed precision some iterations make no step, because their gradients overflow. They are
    rarely more than a tenth; with two iterations to a step, half of all make none.
    """
    return "step" in rows and rows["step"].nunique() <= 0.9 * rows["iteration"].nunique()


def _count_steps_before(rows: pd.DataFrame) -> pd.Series:
    """Return the number of optimizer steps before each row, which all iterations of a step share.

    `step` counts the steps after an iteration, so the last iteration of a step already counts it.
    After a gap the row before is unknown; its own count serves, as that sync is incomplete.
    """
    before = rows.groupby("rank")["step"].shift(1)
    return before.where(_follow_each_other(rows), rows["step"])


def _follow_each_other(rows: pd.DataFrame) -> pd.Series:
    """Return whether each row has its rank's iteration before it in the table."""
    return rows.groupby("rank")["iteration"].diff() <= 1
