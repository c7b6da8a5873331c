"""Exchanges: training as the ranks lived it together, from one exchange of gradients to the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.stats.insight.robust import Floats
from orchestrator.stats.spans import SPANS

OWN_WORK = ("data_wait_s", "to_device_s", "forward_s", "loss_s", "optimizer_s")
"""Spans in which a rank does its own work and waits for no other."""
MAY_WAIT = ("hooks_s", "checkpoint_s", "other_s")
"""Spans in which a rank may also wait for others, in a collective hook, a barrier or a question; the later the likelier."""
WAIT = "all_reduce_wait_s"
"""The span in which a rank waits for the others. Where it is not measured `backward_s` has the waiting in it."""


@dataclass(frozen=True)
class Exchanges:
    """The spans of every rank between exchanges of gradients; arrays have the shape (exchanges, ranks) and are seconds."""

    iterations: NDArray[np.int64]
    """The iteration that each exchange ended."""
    ranks: tuple[int, ...]
    """The global ranks, in the order of the columns."""
    nodes: tuple[str, ...]
    """Where each rank ran."""
    local: dict[str, Floats]
    """What each rank spent on its own, by span; `backward_s` only where the waiting is not in it."""
    wait: Floats
    """Waiting for the other ranks: measured, or else `backward_s` above the shortest of all ranks."""
    step: Floats
    """The whole time."""
    steps_apart: bool
    """True where an exchange comes after several iterations."""

    @cached_property
    def step_s(self) -> float:
        """The median time from one exchange to the next."""
        return float(np.median(self.step))

    @cached_property
    def work(self) -> Floats:
        """All that each rank did on its own."""
        total: Floats = sum(self.local.values(), start=np.zeros_like(self.step))
        return total


def exchanges_of(stats: pd.DataFrame) -> Exchanges | None:
    """The exchanges of a stats table, of which the first is left out; None where nothing was timed.

    Iterations that share an optimizer step are taken together, as their ranks meet once. What not all ranks have is
    left out.
    """
    spans = [name for name in SPANS if name in stats and stats[name].notna().any()]
    if "step_s" not in stats or not spans:
        return None
    rows = stats[stats["phase"] == "train"].sort_values(["rank", "iteration"])
    rows, steps_apart = _by_exchange(rows)
    table = rows.groupby(["exchange", "rank"])[["iteration", "step_s", *spans]].agg(
        {"iteration": "max", **dict.fromkeys(["step_s", *spans], "sum")}
    )
    wide: Any = table.unstack("rank")
    wide = wide.dropna(subset=[("step_s", rank) for rank in rows["rank"].unique()]).iloc[1:]
    if not len(wide):
        return None
    ranks = tuple(int(rank) for rank in wide["step_s"].columns)
    column = {name: wide[name].to_numpy(dtype=float) for name in ("step_s", *spans)}
    backward = column.get("backward_s", np.zeros_like(column["step_s"]))
    # Ranks that share out their parameters wait in collectives of the passes themselves, and hardly in this span.
    measured = WAIT in column and np.median(column[WAIT]) > 0
    wait = column[WAIT] if measured else backward - backward.min(axis=1, keepdims=True)
    local = {name: column[name] for name in (*OWN_WORK, *MAY_WAIT) if name in column}
    if measured:
        local["backward_s"] = backward
    where = stats.drop_duplicates("rank", keep="last").set_index("rank")
    nodes = tuple(str(where.loc[rank, "node"]) if "node" in where else "" for rank in ranks)
    iterations = wide["iteration"].max(axis=1).to_numpy(dtype=np.int64)
    return Exchanges(iterations, ranks, nodes, local, wait, column["step_s"], steps_apart)


def _by_exchange(rows: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The rows with the number of the exchange they led to, and whether several lead to one."""
    if "step" not in rows or rows["step"].nunique() > 0.9 * rows["iteration"].nunique():
        return rows.assign(exchange=rows["iteration"]), False
    before = rows.groupby("rank")["step"].shift(1)
    return rows.assign(exchange=before.fillna(rows["step"])), True


def rank_of_most(values: pd.Series[Any]) -> int:
    """The rank, which is the index, of the largest value."""
    return int(values.index[int(np.nanargmax(values.to_numpy(dtype=float)))])
