"""Curves of many trials over steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from orchestrator.report.binning import Floats, select_with_extremes
from orchestrator.report.charts.axes import make_value_axis
from orchestrator.report.charts.chart import COLORS, draw_chart
from orchestrator.report.markup import Markup

BEST = COLORS[1]
"""Color of the best trial."""
MAX_POINTS = 120
"""Maximum number of points of a trial's curve."""


def draw_curves(
    title: str,
    column: str,
    points: Mapping[str, tuple[Floats, Floats]],
    best: str | None,
    note: str = "",
) -> Markup:
    """Draw the curves of many trials over steps, the best first. Worse ones are fainter."""
    size, axis = make_value_axis(column, np.concatenate([y for _, y in points.values()]))
    figure = go.Figure(
        layout={"xaxis": {"title": {"text": "step"}}, "yaxis": axis, "hovermode": "closest"}
    )
    for index, (trial, (x, y)) in reversed([*enumerate(points.items())]):
        selected = select_with_extremes(y, MAX_POINTS)
        style = make_trial_style(trial, 1 - index / len(points), trial == best)
        figure.add_scatter(x=x[selected], y=y[selected] / size, **style)
    return draw_chart(title, figure, note, height=380, wide=True)


def make_trial_style(trial: str, score: float, is_best: bool) -> dict[str, Any]:
    """Make the style of a trial's line. The better its score (0 to 1), the more opaque it is."""
    if is_best:
        line = {"color": BEST, "width": 2.5}
        opacity = 1.0
    else:
        line = {"color": COLORS[0], "width": 1.4}
        opacity = 0.1 + 0.8 * score
    return {"name": trial, "line": line, "opacity": opacity, "showlegend": False}
