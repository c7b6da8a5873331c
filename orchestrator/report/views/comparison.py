"""Comparison of a sweep's trials: table, parallel coordinates, configurations, importance, Pareto
front and curves."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.report import page
from orchestrator.report.figures import (
    draw_curves,
    draw_parallel_coordinates,
    draw_scatter,
    draw_stacks,
)
from orchestrator.report.markup import Quantity, Share, concatenate, element, make_table
from orchestrator.report.views.learning import Reports, select_points
from orchestrator.sweeps.results.analysis import (
    CONFIG,
    MIN_TRIALS,
    aggregate_repeats,
    find_pareto_front,
    make_configurations_table,
    make_importance_table,
    select_candidates,
)

MOST_LINES, MOST_DOTS, MOST_CONFIGURATIONS = 400, 600, 100
"""Maximum numbers of lines of parallel coordinates, dots on and off a Pareto front, and rows of
configurations."""
COST = "step_s"
"""Second axis of the Pareto front if the sweep has one metric."""
MOST_ROWS, MOST_CELLS, MOST_FAILED = 1000, 20_000, 100
"""Rows of the table, its cells, and trials that failed, at most."""
LONGEST = 80
"""Characters of an error that are shown before it is unfolded."""
COSTS = (
    "step_s",
    "train_s",
    "samples_per_s",
    "process_peak_rss_bytes",
    "peak_allocated_bytes",
    "total_s",
    "data_wait_share",
)


def select_trials(ordered: Sequence[str], max_trials: int) -> list[str]:
    """Select at most `max_trials` trials: half of them the best, the others evenly spaced down to
    the worst."""
    if len(ordered) <= max_trials:
        return [*ordered]
    others = (
        np.linspace(max_trials // 2, len(ordered) - 1, max_trials - max_trials // 2)
        .round()
        .astype(int)
    )
    return [*ordered[: max_trials // 2], *(ordered[index] for index in others)]


def describe_lines(best: str | None, shown: int, count: int) -> str:
    """Describe the style of the trials' lines, and which trials `select_trials` selected."""
    note = (
        "The best trial is orange; worse trials are fainter."
        if best
        else "Worse trials are fainter."
    )
    if shown < count:
        note += (
            f" {shown:,} of {count:,} trials are drawn: the {shown // 2:,} best, "
            "and others evenly down to the worst."
        )
    return note


def render_coordinates(
    trials: pd.DataFrame, objectives: Mapping[str, str], best: str | None
) -> page.Section:
    """Render parallel coordinates of values, metrics and `step_s`. `trials` are the best first."""
    title = "Parallel coordinates"
    values = [str(name) for name in trials.columns if str(name).startswith(CONFIG)]
    results = [
        name
        for name in dict.fromkeys([*objectives, COST])
        if name in trials and trials[name].notna().any()
    ]
    if not values or not results or len(trials) < 2:
        return page.Section("coordinates", title, "Needs two trials, of which one has reported.")
    chosen = select_trials([*map(str, trials.index)], MOST_LINES)
    shown = trials.loc[chosen, [*values, *results]].rename(
        columns=lambda name: name.removeprefix(CONFIG)
    )
    note = describe_lines(best, len(chosen), len(trials))
    return page.Section(
        "coordinates", title, draw_parallel_coordinates("Values and metrics", shown, best, note)
    )


def render_configurations(
    trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str
) -> page.Section:
    metric, mode = next(iter(objectives.items()))
    ranked = make_configurations_table(trials, metric, mode, aggregate)
    if not len(ranked) or not ranked["mean"].notna().any():
        return page.Section("configurations", "Configurations", "No trial has reported yet.")
    shown = ranked.head(MOST_CONFIGURATIONS)
    columns = [*map(str, shown.columns)]
    metric_columns = ("mean", "std", "low", "high", "lower_bound")
    rows = [
        (
            str(number),
            *(Quantity(metric if name in metric_columns else name, row[name]) for name in columns),
        )
        for number, row in shown.iterrows()
    ]
    headings = {name: name.removeprefix(CONFIG) for name in columns}
    headings |= {"mean": f"mean {metric}", "low": "95% from", "high": "to", "best": "best trial"}
    caption = f"Sorted by the number of trials that ended well, then by {aggregate}; intervals by Student's t"
    drawn = make_table(
        caption, ("configuration", *columns), rows, headings=headings, class_="sortable"
    )
    note = (
        f"{len(shown):,} of {len(ranked):,} configurations, the best first."
        if len(shown) < len(ranked)
        else ""
    )
    return page.Section("configurations", "Configurations", drawn, note)


def render_importance(
    trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str = "mean"
) -> page.Section:
    metric, mode = next(iter(objectives.items()))
    title, units = "Parameter importance", aggregate_repeats(trials, metric, mode, aggregate)
    if len(units) < MIN_TRIALS:
        what = "configurations" if "configuration" in trials else "trials"
        return page.Section(
            "importance",
            title,
            f"Needs {MIN_TRIALS} {what} with {metric}; there are {len(units)} so far.",
        )
    ranked = make_importance_table(units, metric)
    rows = [
        (name, Share(float(row["importance"])), Quantity("share", row["spread"]))
        for name, row in ranked.iterrows()
    ]
    drawn = make_table(
        f"Importance for {metric}", ("parameter", "share", "spread"), rows, class_="shares"
    )
    note = (
        "Share of the variance between the trials' ranks that a parameter explains, beyond chance. The spread is the"
        " uncertainty of a share: ignore a share that is not larger."
    )
    return page.Section("importance", title, drawn, note)


def render_front(trials: pd.DataFrame, objectives: Mapping[str, str]) -> page.Section:
    """Render the Pareto front of the sweep's metrics, or of its only metric and `step_s`."""
    modes = dict(objectives) if len(objectives) > 1 else {COST: "min", **objectives}
    title = "Pareto front"
    known = select_candidates(trials, *modes)
    if not len(known):
        return page.Section("front", title, f"No trial has {' and '.join(modes)} yet.")
    best = find_pareto_front(known, modes)
    dominated = known.index.difference(best.index, sort=False)
    front, others = (
        select_trials([*map(str, index)], MOST_DOTS) for index in (best.index, dominated)
    )
    across, up = [*modes][:2]
    shown = known.loc[[*front, *others], [across, up]].astype(float)
    better = ", ".join(
        f"{'less' if mode == 'min' else 'more'} of {name}" for name, mode in modes.items()
    )
    drawn = f" Drawn: {len(front):,} of {len(best):,} trials on the front, {len(others):,} of {len(dominated):,} more."
    note = f"Better: {better}.{drawn if len(shown) < len(known) else ''}"
    return page.Section(
        "front", title, draw_scatter(f"{up} against {across}", shown, {*front}, note)
    )


def render_spending(spans: pd.DataFrame) -> page.Section:
    """Show the mean `spans` of a training iteration, a row for each of the best trials."""
    title = "Time per iteration"
    if not len(spans):
        return page.Section("spending", title, "No trial has recorded spans yet.")
    note = "Mean across all ranks, of the best trials, the best first."
    drawn = draw_stacks("Mean iteration of each trial", spans.fillna(0.0), "trial", note)
    return page.Section("spending", title, drawn)


def render_progress(
    reports: Mapping[str, Reports], objectives: Mapping[str, str], count: int, best: str | None
) -> page.Section:
    """Draw the curves of the sweep's metrics. `reports` is by trial, best first, of `count` trials
    with reports."""
    charts = []
    for metric in objectives:
        known = {trial: select_points(metric, own) for trial, own in reports.items()}
        drawn = {trial: (steps, values) for trial, (steps, values) in known.items() if len(steps)}
        if drawn:
            charts.append(
                draw_curves(metric, metric, drawn, best, describe_lines(best, len(reports), count))
            )
    content = element("div", *charts) if charts else "No trial has reported yet."
    return page.Section("progress", "Learning curves", content)


def render_trials(ordered: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show the table of trials, best first; of too many, the best and some that failed."""
    if not len(ordered):
        return page.Section("trials", "Trials", "No trial has begun yet.")
    columns = arrange_columns(ordered, objectives)
    most = max(1, min(MOST_ROWS, MOST_CELLS // len(columns)))
    failed = ordered["status"].isin(["failed", "lost"])
    shown = ordered[(np.arange(len(ordered)) < most) | (failed & (failed.cumsum() <= MOST_FAILED))]
    rows = [
        (
            element("span", str(trial), id=str(trial)),
            *(_format_value(name, row[name]) for name in columns),
        )
        for trial, row in shown[columns].iterrows()
    ]
    tools = element(
        "div",
        element(
            "input", type="search", placeholder="filter rows", aria_label="Only rows with this text"
        ),
        "Click a heading to sort.",
        class_="tools",
    )
    drawn = make_table(
        "Each trial at its best report, best first",
        ("trial", *columns),
        rows,
        headings={name: name.removeprefix(CONFIG) for name in columns},
        class_="sortable trials",
    )
    note = ""
    if len(shown) < len(ordered):
        note = (
            f"{len(shown):,} of {len(ordered):,} trials: the best, and some that failed. All of them:"
            f" hookyard show {shlex.quote(path)} --json"
        )
    return page.Section("trials", "Trials", concatenate([tools, drawn]), note)


def arrange_columns(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[str]:
    """Return the columns that are not empty, the important ones first: the reason of a failure is
    one of them."""
    known = [str(name) for name in trials.columns if trials[name].notna().any()]
    values = [name for name in known if name.startswith(CONFIG)]
    first = ["status", *values, *objectives, "diverged", "error", *COSTS]
    return [name for name in dict.fromkeys([*first, *known]) if name in known]


def _format_value(name: str, value: Any) -> Any:
    if name == "status":
        return page.make_status_badge(str(value))
    if name == "error" and isinstance(value, str) and len(value) > LONGEST:
        return page.make_details(f"{value[:LONGEST]}…", value)
    # A column with empty cells makes floats of counts.
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        else value
    )
