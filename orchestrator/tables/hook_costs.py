"""The costs of hooks on all ranks: loading them, without superseded ones, and their summary."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from hooks.hook import WITHIN_ITERATION
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.columns import narrow_counters
from orchestrator.disk.rows.reader import open_recorded
from orchestrator.disk.rows.valid_rows import make_superseded_cost_filter
from orchestrator.storage import Storage

_KEY = ["rank", "hook", "event"]
"""Key columns of the table of costs."""


def load_costs(storage: Storage, attempts: Sequence[Attempt]) -> pd.DataFrame:
    """Return the calls and seconds of each hook at each event on each rank. `storage` is the run's
    folder."""
    source = open_recorded(storage, "costs")
    if not source.schema.names:
        return sum_costs([], attempts)
    batches = source.batches([*_KEY, "attempt", "iteration", "stage", "calls", "seconds"])
    tables = (narrow_counters(pa.Table.from_batches([batch])) for batch in batches)
    return sum_costs(tables, attempts)


def sum_costs(costs: Iterable[pa.Table], attempts: Sequence[Attempt]) -> pd.DataFrame:
    """Sum the hook costs, leaving out superseded rows."""
    is_valid = ~make_superseded_cost_filter(attempts)
    sums = [_sum(table.filter(is_valid)) for table in costs if len(table)]
    if not sums:
        return pd.DataFrame(columns=[*_KEY, "calls", "seconds"])
    total: pd.DataFrame = _sum(pa.concat_tables(sums)).to_pandas()
    return total.sort_values(_KEY, ignore_index=True)


def _sum(costs: pa.Table) -> pa.Table:
    sums = costs.group_by(_KEY).aggregate([("calls", "sum"), ("seconds", "sum")])
    return sums.select([*_KEY, "calls_sum", "seconds_sum"]).rename_columns(
        [*_KEY, "calls", "seconds"]
    )


def compute_hook_shares(costs: pd.DataFrame, iterations_s: float) -> "pd.Series[float]":
    """Return the share of each row of `costs` in the time, of which the iterations took
    `iterations_s`.

    Hooks between iterations take time of their own, so that their share is that of all time.
    """
    is_within = costs["event"].isin([*WITHIN_ITERATION, "write"])  # writes run beside training
    outside_s = costs["seconds"].where(~is_within, 0.0).sum()
    return costs["seconds"] / (iterations_s + outside_s * ~is_within)


def summarize_hooks(costs: pd.DataFrame, all_s: float) -> pd.DataFrame:
    """Summarize each hook and event: calls, seconds, their share of the time, and the costliest
    rank.

    `all_s` is the time of all iterations on all ranks, in seconds.

    If `costs` has each hook's `every`, the column `every_for_1_percent` has the `every` that would
    cost at most 1%.
    """
    grouped = costs.groupby(["hook", "event"])
    table = grouped[["calls", "seconds"]].sum()
    table["share"] = compute_hook_shares(table.reset_index(), all_s).to_numpy()
    table["microseconds_per_call"] = table["seconds"] / table["calls"] * 1e6
    costliest = costs.loc[grouped["seconds"].idxmax()].set_index(["hook", "event"])
    table["costliest_rank"] = costliest["rank"]
    if "every" in costs:
        every = grouped["every"].first()
        pairs = zip(table.index, table["share"], strict=True)
        suggestions = [suggest_every(key[1], every[key], share) for key, share in pairs]
        table["every_for_1_percent"] = pd.Series(suggestions, table.index, dtype=object)
    return table.sort_values("seconds", ascending=False)


def suggest_every(event: str, every: Any, share: float) -> str | None:
    """Return the `every` with which a hook takes at most 1% of the time at an event; None if it
    takes no more now.

    `every` is the current value, such as `10` or `100 steps`, and `share` the current cost. Also
    returns None for events outside iterations, and for hooks without `every`.
    """
    match = re.fullmatch(r"\s*(\d+)\s*(\w*)\s*", str(every))
    if match is None or event not in WITHIN_ITERATION:
        return None
    current = int(match[1])
    unit = match[2].removesuffix("s")
    if current == 0 or not share > 0.01:
        return None

    count = math.ceil(round(current * share / 0.01, 6))
    return f"{count} {unit}s" if unit else str(count)
