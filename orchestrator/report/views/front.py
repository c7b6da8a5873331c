"""The Pareto front of a sweep."""

from collections.abc import Mapping

import pandas as pd

from orchestrator.report import page
from orchestrator.report.charts.scatter import draw_scatter
from orchestrator.report.trial_selection import COST, select_trials
from orchestrator.sweeps.results.pareto import find_pareto_front
from orchestrator.sweeps.results.ranking import select_candidates

MAX_DOTS = 600
"""Maximum number of dots on a Pareto front, and off it."""


def render_front(trials: pd.DataFrame, objectives: Mapping[str, str]) -> page.Section:
    """Render the Pareto front of the sweep's metrics, or of its only metric and `step_s`."""
    modes = dict(objectives) if len(objectives) > 1 else {COST: "min", **objectives}
    title = "Pareto front"
    known = select_candidates(trials, *modes)
    if not len(known):
        return page.Section("front", title, f"No trial has {' and '.join(modes)} yet.")
    best = find_pareto_front(known, modes)
    dominated = known.index.difference(best.index, sort=False)
    front = select_trials([*map(str, best.index)], MAX_DOTS)
    others = select_trials([*map(str, dominated)], MAX_DOTS)
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
