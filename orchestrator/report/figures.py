"""Charts: plotly figures in the page's style, which CSS adapts to light and dark themes."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.axes import choose_unit, make_value_axis
from orchestrator.report.binning import Floats, select_with_extremes
from orchestrator.report.markup import Markup, element

COLORS = (
    "#3965b2",
    "#f06b10",
    "#1f7530",
    "#703df2",
    "#ef0d42",
    "#5899cf",
    "#9b9474",
    "#766ff2",
    "#5d648b",
)
"""Colors of categories: they contrast with the page in both themes, and color-blind readers can
tell them apart."""
GREY = "#808890"
"""Color of the background: all ranks, dominated trials."""
BEST = COLORS[1]
SPAN_COLORS = {
    "data_wait_s": COLORS[1],
    "to_device_s": COLORS[6],
    "forward_s": COLORS[0],
    "loss_s": COLORS[7],
    "optimizer_s": COLORS[2],
    "hooks_s": COLORS[3],
    "checkpoint_s": COLORS[4],
    "other_s": COLORS[8],
    "backward_s": COLORS[5],
    "all_reduce_wait_s": GREY,
}
"""Color of each span, in the order in which bars stack them: the backward pass and the wait come
last."""
MAX_POINTS = 120
"""Maximum number of points of a trial's curve."""
COLOR_QUANTILE = 0.95
"""Quantile at which the colors of a heat map end; larger values have the same color."""
_AXIS = {"automargin": True, "showline": False, "zeroline": False, "title": {"standoff": 8}}
_TEMPLATE = go.layout.Template(
    layout={
        "colorway": COLORS,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {
            "bgcolor": "#1b1f26",
            "bordercolor": "#1b1f26",
            "font": {"color": "#ffffff"},
            "namelength": -1,
        },
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": GREY},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


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


def draw_chart(
    title: str,
    figure: go.Figure,
    note: str = "",
    *,
    height: int = 300,
    wide: bool = False,
    min_width: int = 0,
) -> Markup:
    """Make the HTML of a figure, with its title and a note on how to read it. Sizes are in
    pixels."""
    figure.update_layout(template=_TEMPLATE, height=height)
    lines = _escape(json.loads(figure.to_json()))
    note_element = element("span", note, class_="note") if note else None
    caption = element("figcaption", element("b", title), note_element)
    # An escaped `<` cannot end the script element.
    data = element(
        "script", Markup(json.dumps(lines).replace("<", "\\u003c")), type="application/json"
    )
    plot = element(
        "div",
        class_="plot",
        role="img",
        aria_label=title,
        style=f"height:{height}px;min-width:{min_width}px",
    )
    scroll = element("div", plot, data, class_="scroll")
    return element("figure", caption, scroll, class_="wide" if wide else None)


def _escape(value: Any, key: str = "") -> Any:
    """Escape the texts of a figure, because plotly interprets some tags as formatting and links."""
    if isinstance(value, dict):
        return {name: _escape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escape(inner, key) for inner in value]
    if isinstance(value, str) and key != "hovertemplate":
        return escape(value, quote=False)
    return value


def draw_lines(
    title: str, column: str, lines: Sequence[Line], x_name: str, note: str = ""
) -> Markup:
    """Draw lines on a shared axis. The name of `column` gives the unit."""
    values: list[Floats] = []
    for line in lines:
        values.extend(edge for edge in (line.y, line.low, line.high) if edge is not None)
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
    line = {"color": BEST if is_best else COLORS[0], "width": 2.5 if is_best else 1.4}
    return {
        "name": trial,
        "line": line,
        "opacity": 1 if is_best else 0.1 + 0.8 * score,
        "showlegend": False,
    }


def draw_stacks(title: str, spans: pd.DataFrame, name: str, note: str = "") -> Markup:
    """Draw a stacked bar of the spans in each row of a table. `name` is the label of the axis."""
    totals = spans.clip(lower=0).sum(axis=1).to_numpy()
    size, axis = make_value_axis("total_s", totals, from_zero=True)
    figure = go.Figure(
        layout={
            "barmode": "stack",
            "yaxis": axis,
            "xaxis": {"type": "category", "title": {"text": name}, "nticks": 12},
            "hovermode": "x unified",
            "legend": {"traceorder": "normal"},
        }
    )
    labels = [str(label) for label in spans.index]
    for column in map(str, spans.columns):
        color = {"color": SPAN_COLORS[column], "line": {"width": 0}}
        figure.add_bar(
            x=labels, y=spans[column].to_numpy(dtype=float) / size, name=column, marker=color
        )
    return draw_chart(title, figure, note, height=380, wide=True)


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


def draw_heat_maps(title: str, grids: Mapping[str, pd.DataFrame], note: str) -> Markup:
    """Draw heat maps of seconds by groups of ranks and iterations, with a menu to choose one."""
    figure = go.Figure()
    ranks, iterations = next(iter(grids.values())).axes
    rows = _name_groups(ranks)
    columns = _name_groups(iterations)
    buttons = []
    for index, (name, grid) in enumerate(grids.items()):
        top = float(np.nanquantile(grid, COLOR_QUANTILE))
        unit, size = choose_unit("s", top)
        figure.add_heatmap(
            z=(grid / size).to_numpy(np.float32),
            x=columns,
            y=rows,
            name=name,
            zmin=0,
            zmax=top / size,
            colorscale="Viridis",
            colorbar={"ticksuffix": f" {unit}", "thickness": 12},
            hovertemplate=f"rank %{{y}}, iteration %{{x}}<br>%{{z:.4~g}} {unit}<extra></extra>",
            visible=index == 0,
        )
        visible = [other == name for other in grids]
        buttons.append({"label": name, "method": "restyle", "args": [{"visible": visible}]})

    menu = {
        "buttons": buttons,
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "showactive": False,
    }
    figure.update_layout(updatemenus=[menu], margin={"t": 40})
    figure.update_xaxes(type="category", title_text="iteration", nticks=8)
    figure.update_yaxes(type="category", title_text="rank", nticks=8, autorange="reversed")
    return draw_chart(title, figure, note, height=min(480, 160 + 24 * len(rows)), wide=True)


def _name_groups(groups: Any) -> list[str]:
    names = []
    for group in groups:
        is_single = group.left == group.right
        names.append(str(group.left) if is_single else f"{group.left}-{group.right}")
    return names
