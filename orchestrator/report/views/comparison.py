"""Comparison of a sweep's trials: table, parallel coordinates, configurations, importance, Pareto
front and curves."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.report import page
from orchestrator.report.figures import draw_curves, draw_scatter, draw_stacks
from orchestrator.report.markup import Quantity, Share, concatenate, element, make_table
from orchestrator.report.parallel_coordinates import draw_parallel_coordinates
from orchestrator.report.views.learning import Reports, select_points
from orchestrator.sweeps.results.configurations_table import (
    aggregate_repeats,
    make_configurations_table,
)
from orchestrator.sweeps.results.importance import MIN_TRIALS, make_importance_table
from orchestrator.sweeps.results.pareto import find_pareto_front
from orchestrator.sweeps.results.ranking import select_candidates

MOST_LINES = 400
"""Maximum number of lines of parallel coordinates."""
MOST_DOTS = 600
"""Maximum number of dots on a Pareto front, and off it."""
MOST_CONFIGURATIONS = 100
"""Maximum number of rows of configurations."""
COST = "step_s"
"""Second axis of the Pareto front if the sweep has one metric."""
MOST_ROWS = 1000
"""Maximum number of rows of the table of trials."""
MOST_CELLS = 20_000
"""Maximum number of its cells."""
MOST_FAILED = 100
"""Maximum number of failed trials in it."""
LONGEST = 80
"""Characters of an error that are shown before it is unfolded."""
COST_COLUMNS = (
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
    n_best = max_trials // 2
    places = np.linspace(n_best, len(ordered) - 1, max_trials - n_best).round().astype(int)
    return [*ordered[:n_best], *(ordered[place] for place in places)]


def describe_lines(best: str | None, shown: int, count: int) -> str:
    """Describe the style of the trials' lines, and which trials `select_trials` selected."""
    note = "Worse trials are fainter."
    if best:
        note = "The best trial is orange; worse trials are fainter."
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
    candidates = [name for name in dict.fromkeys([*objectives, COST]) if name in trials]
    results = [name for name in candidates if trials[name].notna().any()]
    if not values or not results or len(trials) < 2:
        return page.Section("coordinates", title, "Needs two trials, of which one has reported.")
    chosen = select_trials([*map(str, trials.index)], MOST_LINES)
    shown = trials.loc[chosen, [*values, *results]]
    shown = shown.rename(columns=lambda name: name.removeprefix(CONFIG))
    note = describe_lines(best, len(chosen), len(trials))
    drawn = draw_parallel_coordinates("Values and metrics", shown, best, note)
    return page.Section("coordinates", title, drawn)


def render_configurations(
    trials: pd.DataFrame, objectives: Mapping[str, str], aggregate: str, repeated_path: str = "seed"
) -> page.Section:
    metric, mode = next(iter(objectives.items()))
    ranked = make_configurations_table(trials, metric, mode, aggregate, repeated_path)
    if not len(ranked) or not ranked["mean"].notna().any():
        return page.Section("configurations", "Configurations", "No trial has reported yet.")
    shown = ranked.head(MOST_CONFIGURATIONS)
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
        return page.Section(
            "importance",
            title,
            f"Needs {MIN_TRIALS} {what} with {metric}; there are {len(units)} so far.",
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


def render_front(trials: pd.DataFrame, objectives: Mapping[str, str]) -> page.Section:
    """Render the Pareto front of the sweep's metrics, or of its only metric and `step_s`."""
    modes = dict(objectives) if len(objectives) > 1 else {COST: "min", **objectives}
    title = "Pareto front"
    known = select_candidates(trials, *modes)
    if not len(known):
        return page.Section("front", title, f"No trial has {' and '.join(modes)} yet.")
    best = find_pareto_front(known, modes)
    dominated = known.index.difference(best.index, sort=False)
    front = select_trials([*map(str, best.index)], MOST_DOTS)
    others = select_trials([*map(str, dominated)], MOST_DOTS)
    across, up = [*modes][:2]
    shown = known.loc[[*front, *others], [across, up]].astype(float)
    words = {"min": "less", "max": "more"}
    note = f"Better: {', '.join(f'{words[mode]} of {name}' for name, mode in modes.items())}."
    if len(shown) < len(known):
        note += (
            f" Drawn: {len(front):,} of {len(best):,} trials on the front, {len(others):,} of"
            f" {len(dominated):,} more."
        )
    drawn = draw_scatter(f"{up} against {across}", shown, {*front}, note)
    return page.Section("front", title, drawn)


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
    note = describe_lines(best, len(reports), count)
    for metric in objectives:
        points = {}
        for trial, own in reports.items():
            steps, values = select_points(metric, own)
            if len(steps):
                points[trial] = (steps, values)
        if points:
            charts.append(draw_curves(metric, metric, points, best, note))
    content = element("div", *charts) if charts else "No trial has reported yet."
    return page.Section("progress", "Learning curves", content)


def render_trials(ordered: pd.DataFrame, objectives: Mapping[str, str], path: str) -> page.Section:
    """Show the table of trials, best first; of too many, the best and some that failed."""
    if not len(ordered):
        return page.Section("trials", "Trials", "No trial has begun yet.")
    columns = arrange_columns(ordered, objectives)
    n_best = max(1, min(MOST_ROWS, MOST_CELLS // len(columns)))
    is_best = np.arange(len(ordered)) < n_best
    has_failed = ordered["status"].isin(["failed", "lost"])
    shown = ordered[is_best | (has_failed & (has_failed.cumsum() <= MOST_FAILED))]
    rows = []
    for trial, row in shown[columns].iterrows():
        name = element("span", str(trial), id=str(trial))
        rows.append((name, *(_format_value(column, row[column]) for column in columns)))

    search = element(
        "input", type="search", placeholder="filter rows", aria_label="Only rows with this text"
    )
    tools = element("div", search, "Click a heading to sort.", class_="tools")
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
            f"{len(shown):,} of {len(ordered):,} trials: the best, and some that failed. All of"
            f" them: hookyard show {shlex.quote(path)} --json"
        )
    return page.Section("trials", "Trials", concatenate([tools, drawn]), note)


def arrange_columns(trials: pd.DataFrame, objectives: Mapping[str, str]) -> list[str]:
    """Return the columns that are not empty, the important ones first: the reason of a failure is
    one of them."""
    known = [str(name) for name in trials.columns if trials[name].notna().any()]
    values = [name for name in known if name.startswith(CONFIG)]
    first = ["status", *values, *objectives, "diverged", "error", *COST_COLUMNS]
    return [name for name in dict.fromkeys([*first, *known]) if name in known]


def _format_value(name: str, value: Any) -> Any:
    if name == "status":
        return page.make_status_badge(str(value))
    if name == "error" and isinstance(value, str) and len(value) > LONGEST:
        return page.make_details(f"{value[:LONGEST]}…", value)
    # A column with empty cells makes floats of counts.
    is_count = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return int(value) if is_count else value
