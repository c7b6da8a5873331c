"""The configurations of a sweep that repeats them."""

from collections.abc import Mapping

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.report import page
from orchestrator.report.tables import Quantity, make_table
from orchestrator.sweeps.results.configurations_table import make_configurations_table

MAX_CONFIGURATIONS = 100
"""Maximum number of rows of configurations."""


def render_configurations(
    trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str, repeated_path: str = "seed"
) -> page.Section:
    metric, mode = next(iter(objectives.items()))
    ranked = make_configurations_table(trials, metric, mode, aggregate, repeated_path)
    if not len(ranked) or not ranked["mean"].notna().any():
        return page.Section("configurations", "Configurations", "No trial has reported yet.")
    shown = ranked.head(MAX_CONFIGURATIONS)
    columns = [*map(str, shown.columns)]
    unit_names = dict.fromkeys(("mean", "std", "low", "high", "lower_bound"), metric)
    rows = []
    for number, row in shown.iterrows():
        cells = [Quantity(unit_names.get(name, name), row[name]) for name in columns]
        rows.append((str(number), *cells))
    headings = {name: name.removeprefix(CONFIG) for name in columns}
    headings |= {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    drawn = make_table(
        f"Sorted by the number of trials that ended well, then by {aggregate}; intervals by"
        " Student's t",
        ("configuration", *columns),
        rows,
        headings=headings,
        class_="sortable",
    )
    note = ""
    if len(shown) < len(ranked):
        note = f"{len(shown):,} of {len(ranked):,} configurations, the best first."
    return page.Section("configurations", "Configurations", drawn, note)
