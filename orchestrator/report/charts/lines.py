"""Lines over steps or iterations, with bands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.binning import Floats
from orchestrator.report.charts.axes import make_value_axis
from orchestrator.report.charts.chart import COLORS, draw_chart
from orchestrator.report.markup import Markup


@dataclass(frozen=True)
class Line:
    """A line, optionally with a band."""

    name: str
    x: Floats
    y: Floats
    color: str = COLORS[0]
    low: Floats | None = None
    high: Floats | None = None

    @classmethod
    def from_envelope(cls, name: str, envelope: pd.DataFrame, color: str = COLORS[0]) -> "Line":
        """Make a line from an envelope's means, with a band from the smallest to the largest
        values."""
        mean, low, high = envelope[["mean", "low", "high"]].to_numpy().T
        return cls(name, envelope.index.to_numpy(), mean, color, low, high)


def draw_lines(
    title: str, column: str, lines: Sequence[Line], x_name: str, note: str = ""
) -> Markup:
    """Draw lines on a shared axis. The name of `column` gives the unit."""
    values = []
    for line in lines:
        for edge in (line.y, line.low, line.high):
            if edge is not None:
                values.append(edge)
    size, axis = make_value_axis(column, np.concatenate(values))
    figure = go.Figure(
        layout={"xaxis": {"title": {"text": x_name}}, "yaxis": axis, "hovermode": "x unified"}
    )
    for line in lines:
        _add_line(figure, line, size, showlegend=len(lines) > 1 or line.name != title)
    return draw_chart(title, figure, note)


def _add_line(figure: go.Figure, line: Line, size: float, *, showlegend: bool) -> None:
    """Add a line and its band to a figure. `size` is that of the axis's unit."""
    band = None
    hover = "%{y}"
    if line.low is not None and line.high is not None:
        band = np.stack([line.low, line.high], axis=1) / size
        hover = "%{y} (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
        _add_band(figure, line, band)
    figure.add_scatter(
        x=line.x,
        y=line.y / size,
        customdata=band,
        name=line.name,
        line={"color": line.color, "width": 1.8},
        hovertemplate=hover,
        showlegend=showlegend,
    )


def _add_band(figure: go.Figure, line: Line, band: Floats) -> None:
    red, green, blue = bytes.fromhex(line.color.removeprefix("#"))
    style = {
        "x": line.x,
        "fillcolor": f"rgba({red},{green},{blue},0.25)",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
    }
    figure.add_scatter(y=band[:, 0], **style)
    figure.add_scatter(y=band[:, 1], fill="tonexty", **style)
