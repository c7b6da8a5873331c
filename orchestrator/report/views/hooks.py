"""The ledger of hooks: what each cost at each event."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page
from orchestrator.report.tables import Share, table
from orchestrator.stats.aggregate.summaries import summarize_hooks


def hooks(costs: pd.DataFrame, all_s: float) -> page.Section:
    """Calls and seconds of each hook, the costliest first. `costs` is the run's hook_costs, `all_s` the time of all
    iterations."""
    note = (
        "Seconds of all ranks on the host's clock; the share is of all iterations' time. "
        "What saving took between phases is (loop) at save, what was written beside the training (loop) at write."
    )
    if not len(costs):
        return page.Section("hooks", "Hooks", "No hook was called yet, or perf_stats is off.")
    found = (
        summarize_hooks(costs, all_s)
        .reset_index()
        .rename(columns={"seconds": "seconds_s", "costliest_rank": "rank"})
        .astype(object)
    )
    found["each_s"] = found["seconds_s"] / found["calls"].clip(lower=1)
    found["share"] = found["share"].map(Share)
    columns = ["hook", "event", "calls", "seconds_s", "each_s", "rank", "share"]
    headings = {"seconds_s": "seconds", "each_s": "each call", "rank": "costliest rank", "share": "share of the time"}
    cells = found[columns].itertuples(index=False, name=None)
    drawn = table("What each hook cost", columns, cells, headings=headings, class_="sortable shares")
    return page.Section("hooks", "Hooks", drawn, note)
