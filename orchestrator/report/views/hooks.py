"""The ledger of hooks: what each cost at each event."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import page
from orchestrator.report.tables import Share, table
from orchestrator.stats.summaries import by_hook


def hooks(costs: pd.DataFrame, rows: pd.DataFrame) -> page.Section:
    """Calls and seconds of each hook, the costliest first. `costs` is the run's hook_costs, `rows` its stats."""
    note = (
        "Seconds of all ranks on the host's clock; the share is of all iterations' time. "
        "What saving took between phases is (loop) at save."
    )
    if not len(costs):
        return page.Section("hooks", "Hooks", page.nothing("No hook was called yet, or perf_stats is off."))
    cells = [
        (
            row["hook"],
            row["event"],
            row["calls"],
            row["seconds"],
            row["seconds"] / max(row["calls"], 1),
            row["costliest_rank"],
            Share(row["share"]),
        )
        for row in by_hook(costs, rows).reset_index().to_dict("records")
    ]
    columns = ("hook", "event", "calls", "seconds_s", "each_s", "rank", "share")
    headings = {"seconds_s": "seconds", "each_s": "each call", "rank": "costliest rank", "share": "share of the time"}
    return page.Section(
        "hooks",
        "Hooks",
        table("What each hook cost", columns, cells, headings=headings, class_="sortable shares"),
        note,
    )
