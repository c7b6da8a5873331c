"""Parallel coordinates of a sweep's trials."""

from collections.abc import Mapping

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.report import page
from orchestrator.report.charts.parallel_coordinates import draw_parallel_coordinates
from orchestrator.report.trial_selection import COST, describe_lines, select_trials

MAX_LINES = 400
"""Maximum number of lines of parallel coordinates."""


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
    chosen = select_trials([*map(str, trials.index)], MAX_LINES)
    shown = trials.loc[chosen, [*values, *results]]
    shown = shown.rename(columns=lambda name: name.removeprefix(CONFIG))
    note = describe_lines(best, len(chosen), len(trials))
    drawn = draw_parallel_coordinates("Values and metrics", shown, best, note)
    return page.Section("coordinates", title, drawn)
