"""The cost of each hook."""

import pandas as pd

from orchestrator.report import page
from orchestrator.report.tables import Share, make_table
from orchestrator.tables.hook_costs import summarize_hooks


def render_hooks(costs: pd.DataFrame, all_s: float) -> page.Section:
    """Render calls and seconds of each hook, the costliest first. `all_s` is the time of all
    iterations, in seconds."""
    note = (
        "Seconds of all ranks on the host's clock; shares of all iterations' time. Saving between"
        " phases is (loop) at save, and writing in the background is (loop) at write."
    )
    if not len(costs):
        return page.Section("hooks", "Hooks", "No hook was called yet, or perf_stats is off.")
    summary = summarize_hooks(costs, all_s).reset_index().astype(object)
    summary = summary.rename(columns={"seconds": "seconds_s", "costliest_rank": "rank"})
    summary["each_s"] = summary["seconds_s"] / summary["calls"].clip(lower=1)
    summary["share"] = summary["share"].map(Share)
    columns = ["hook", "event", "calls", "seconds_s", "each_s", "rank", "share"]
    headings = {
        "seconds_s": "seconds",
        "each_s": "each call",
        "rank": "costliest rank",
        "share": "share of the time",
    }
    cells = summary[columns].itertuples(index=False, name=None)
    drawn = make_table(
        "Cost of each hook", columns, cells, headings=headings, class_="sortable shares"
    )
    return page.Section("hooks", "Hooks", drawn, note)
