"""The importance of each parameter of a sweep."""

from collections.abc import Mapping

import pandas as pd

from orchestrator.report import page
from orchestrator.report.tables import Quantity, Share, make_table
from orchestrator.sweeps.results.configurations_table import aggregate_repeats
from orchestrator.sweeps.results.importance import MIN_TRIALS, make_importance_table


def render_importance(
    trials: pd.DataFrame,
    objectives: Mapping[str, str],
    aggregate: str = "mean",
    repeated_path: str = "seed",
) -> page.Section:
    metric, mode = next(iter(objectives.items()))
    title = "Parameter importance"
    units = aggregate_repeats(trials, metric, mode, aggregate, repeated_path)
    if len(units) < MIN_TRIALS:
        what = "configurations" if "configuration" in trials else "trials"
        known = "there is 1" if len(units) == 1 else f"there are {len(units)}"
        return page.Section(
            "importance", title, f"Needs {MIN_TRIALS} {what} with {metric}; {known} so far."
        )
    ranked = make_importance_table(units, metric)
    rows = [
        (name, Share(float(row["importance"])), Quantity("share", row["std_error"]))
        for name, row in ranked.iterrows()
    ]
    drawn = make_table(
        f"Importance for {metric}", ("parameter", "importance", "std. error"), rows, class_="shares"
    )
    note = (
        "Share of the variance of the trials' positions, sorted by the metric, that a parameter"
        " explains beyond chance. Ignore an importance that is smaller than its standard error."
    )
    return page.Section("importance", title, drawn, note)
