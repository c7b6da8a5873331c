"""Trials as dots, with their Pareto front."""

from collections.abc import Collection
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.charts.axes import make_value_axis
from orchestrator.report.charts.chart import GREY, draw_chart
from orchestrator.report.charts.curves import BEST
from orchestrator.report.markup import Markup


def draw_scatter(
    title: str, points: pd.DataFrame, front: Collection[str], note: str = ""
) -> Markup:
    """Draw a dot for each trial of a table with two columns. A line connects the trials of the
    Pareto front."""
    across, up = map(str, points.columns)
    x_size, x_axis = make_value_axis(across, points[across].to_numpy(dtype=float))
    y_size, y_axis = make_value_axis(up, points[up].to_numpy(dtype=float))
    x_axis["title"] = {"text": across}
    y_axis["title"] = {"text": up}
    figure = go.Figure(layout={"xaxis": x_axis, "yaxis": y_axis, "hovermode": "closest"})

    def add_dots(name: str, rows: pd.DataFrame, mode: str, marker: dict[str, Any]) -> None:
        figure.add_scatter(
            x=rows[across].to_numpy(dtype=float) / x_size,
            y=rows[up].to_numpy(dtype=float) / y_size,
            name=name,
            text=[str(trial) for trial in rows.index],
            mode=mode,
            marker=marker,
            line={"color": BEST, "width": 1.5, "dash": "dot"},
            hovertemplate="%{text}<br>%{x}, %{y}<extra></extra>",
        )

    is_best = points.index.isin([*front])
    grey = {"color": GREY, "size": 7, "opacity": 0.7}
    add_dots("dominated", points[~is_best], "markers", grey)
    best = points[is_best].sort_values(across)
    add_dots("on the Pareto front", best, "lines+markers", {"color": BEST, "size": 10})
    return draw_chart(title, figure, note, height=380, wide=True)
