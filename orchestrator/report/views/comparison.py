"""Comparison of a sweep's trials: parallel coordinates, configurations, importance, Pareto front and curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from orchestrator.report import page
from orchestrator.report.charts.lines import Line, curves
from orchestrator.report.charts.parallel import parallel
from orchestrator.report.charts.scatter import intervals, scatter
from orchestrator.report.charts.stacks import stacks
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.selection import best_and_others, describe_selection, fitting
from orchestrator.report.tables import Quantity, Share, table
from orchestrator.report.views.learning import Reports, points
from orchestrator.report.views.time import KINDS
from orchestrator.sweeps.results.analysis import (
    CONFIG,
    ENOUGH,
    aggregate_repeats,
    configurations_table,
    importance_table,
    non_dominated,
)

MOST_LINES, LINE_CELLS, MOST_DOTS = 400, 8_000, 600
"""Lines of parallel coordinates, values on all of them, and dots of a Pareto front and beside it, at most."""
MOST_CONFIGURATIONS = 100
COST = "step_s"
"""The second axis of the Pareto front of a sweep with one metric."""


def coordinates(trials: pd.DataFrame, objectives: Mapping[str, str], logarithmic: Collection[str]) -> page.Section:
    """Draw parallel coordinates of values, metrics and `step_s`; `logarithmic` are paths with such an axis."""
    values = [str(name) for name in trials.columns if str(name).startswith(CONFIG)]
    shown = [*values, *(name for name in (*objectives, COST) if name in trials and trials[name].notna().any())]
    if not values or len(trials) < 2 or len(shown) == len(values):
        return page.Section("coordinates", "Parallel coordinates", "Needs two trials, of which one has reported.")
    renamed = trials[list(dict.fromkeys(shown))].rename(columns=lambda name: name.removeprefix(CONFIG))
    metric, mode = next(iter(objectives.items()))
    merit = trials[metric].rank(pct=True, ascending=mode == "max") if metric in trials else pd.Series(0.0, trials.index)
    title = f"{len(trials):,} trials: values and metrics"
    chosen = best_and_others([*map(str, renamed.index)], fitting(len(shown), MOST_LINES, LINE_CELLS))
    note = f"The stronger a line, the better its {metric}. {describe_selection(len(chosen), len(trials))}".rstrip()
    drawn = parallel(title, renamed.loc[chosen], merit, logarithmic, note)
    return page.Section("coordinates", "Parallel coordinates", drawn)


def configurations(trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean") -> page.Section:
    """Show the means of configurations over their seeds."""
    metric, mode = next(iter(objectives.items()))
    title = "Configurations"
    ranked = configurations_table(trials, metric, mode, aggregate)
    if not len(ranked) or not ranked["mean"].notna().any():
        return page.Section("configurations", title, "No trial has reported yet.")
    shown = ranked.head(MOST_CONFIGURATIONS)
    columns = [*map(str, shown.columns)]
    of_metric = ("mean", "std", "low", "high", "lower_bound")
    rows = [
        (str(number), *(Quantity(metric if name in of_metric else name, row[name]) for name in columns))
        for number, row in shown.iterrows()
    ]
    headings = {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"} | {
        name: name.removeprefix(CONFIG) for name in columns if name.startswith(CONFIG)
    }
    listed = table(
        f"Sorted by the number of trials that ended well, then by {aggregate}",
        ("configuration", *columns),
        rows,
        headings=headings,
        class_="sortable",
    )
    note = (
        "In the order of the table. A dot is the mean over seeds, a line its 95 % interval by Student's t. The best"
        " configuration is gold; its best trial is the best trial."
    )
    some = f" {len(shown):,} of {len(ranked):,} configurations, the best first." if len(shown) < len(ranked) else ""
    return page.Section(
        "configurations",
        title,
        joined([listed, intervals(f"{metric} of each configuration", shown, metric, note)]),
        some.strip(),
    )


def parameter_importance(trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean") -> page.Section:
    """Show the importance of each parameter for the sweep's first metric."""
    metric, mode = next(iter(objectives.items()))
    title, units = "Parameter importance", aggregate_repeats(trials, metric, mode, aggregate)
    if len(units) < ENOUGH:
        what = "configurations" if "configuration" in trials else "trials"
        return page.Section("mattered", title, f"{len(units)} {what} have reported {metric}; {ENOUGH} are needed.")
    ranked = importance_table(units, metric)
    rows = [
        (name, Share(float(row["importance"])), Quantity("share", row["spread"])) for name, row in ranked.iterrows()
    ]
    drawn = table(f"Importance for {metric}", ("parameter", "share", "spread"), rows, class_="shares")
    note = (
        "How well a parameter predicts the ranks of the trials, beyond chance, by variance. The spread is the"
        " uncertainty of a share: ignore a share that is no larger."
    )
    return page.Section("mattered", title, drawn, note)


def front(trials: pd.DataFrame, objectives: Mapping[str, str]) -> page.Section:
    """Show the Pareto front of the sweep's metrics, or of its metric and `step_s`."""
    modes = dict(objectives) if len(objectives) > 1 else {COST: "min", **objectives}
    title = "Pareto front"
    known = trials.dropna(subset=[*modes]) if len(trials) and {*modes} <= {*trials.columns} else trials.iloc[:0]
    if not len(known):
        return page.Section("front", title, f"No trial has {' and '.join(modes)} yet.")
    best = non_dominated(known, modes)
    names = [*modes][:2]
    better = ", ".join(f"{'less' if mode == 'min' else 'more'} of {name}" for name, mode in modes.items())
    beaten = known.index.difference(best.index, sort=False)
    front, others = (best_and_others([*map(str, index)], MOST_DOTS) for index in (best.index, beaten))
    shown = known[names].loc[[*front, *others]].astype(float)
    some = (
        f"Drawn: {len(front):,} of {len(best):,} trials on the front, and {len(others):,} of {len(beaten):,} others."
        if len(shown) < len(known)
        else ""
    )
    note = f"Horizontal: {names[0]}. Vertical: {names[1]}. Better: {better}. {some}".rstrip()
    drawn = scatter(f"{names[1]} against {names[0]}", shown, {*map(str, front)}, note)
    return page.Section("front", title, drawn)


def spending(spans: pd.DataFrame) -> page.Section:
    """Show the mean `spans` of a training iteration, a row for each of the best trials."""
    title = "Time per iteration"
    if not len(spans):
        return page.Section("spending", title, "No trial has recorded spans yet.")
    which = "the best" if len(spans) == 1 else f"the {len(spans)} best, the best first"
    note = f"The mean training iteration, over all ranks, of {which}."
    drawn = stacks("An iteration of each trial", spans.fillna(0.0), KINDS, "trial", note, trials=True)
    return page.Section("spending", title, drawn)


def progress(reports: Mapping[str, Reports], objectives: Mapping[str, str], count: int) -> page.Section:
    """Draw the curves of the sweep's metrics. `reports` is by trial, best first, of `count` trials with reports."""
    charts = [*filter(None, (_curves(reports, metric, count) for metric in objectives))]
    return page.Section(
        "progress", "Learning curves", element("div", *charts) if charts else "No trial has reported yet."
    )


def _curves(reports: Mapping[str, Reports], metric: str, count: int) -> Markup | None:
    drawn: list[Line] = []
    for trial, own in reports.items():
        steps, values = points(metric, own)
        if len(steps):
            drawn.append(Line(trial, steps, values, kind=0 if drawn else 1, trial=trial))
    if not drawn:
        return None
    note = f"The best trial is gold; worse trials are fainter. {describe_selection(len(reports), count)}".rstrip()
    return curves(metric, metric, drawn, "step", note)
