"""Charts: plotly figures in the page's style, which CSS adapts to the light and the dark theme."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from orchestrator.report.binning import Envelope, Floats, Grid
from orchestrator.report.markup import Markup, element
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.quantities import is_number

COLORS = ("#3965b2", "#f06b10", "#1f7530", "#703df2", "#ef0d42", "#5899cf", "#9b9474", "#766ff2", "#5d648b")
"""Colors of categories: they contrast with the page in both themes, and color-blind readers can tell them apart."""
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
"""Spans of a bar from the lowest, with their colors: the backward pass and the wait come last."""
LOGARITHMIC_FROM = 100.0
"""Least ratio of the largest to the smallest value for a logarithmic axis."""
MOST_POINTS = 120
"""Points of a trial's curve among others."""
MOST_LABELS = 6
"""Labels of an axis of parallel coordinates."""
LONGEST_NAME, AXIS_PIXELS = 22, 140
"""Characters of an axis's name, and the width that they need."""
TOP = 0.95
"""Quantile with the last color of a heat map; larger cells have it too."""
_TIMES = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))
_AXIS = {"automargin": True, "showline": False, "zeroline": False, "title": {"standoff": 8}}
_TEMPLATE = go.layout.Template(
    layout={
        "colorway": COLORS,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"bgcolor": "#1b1f26", "bordercolor": "#1b1f26", "font": {"color": "#ffffff"}, "namelength": -1},
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": GREY},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


@dataclass(frozen=True)
class Line:
    """A line, perhaps in a band."""

    name: str
    x: Floats
    y: Floats
    color: str = COLORS[0]
    low: Floats | None = None
    high: Floats | None = None

    @classmethod
    def of(cls, name: str, envelope: Envelope, color: str = COLORS[0]) -> Line:
        """Return the line of an envelope's means in its band."""
        return cls(name, envelope.at, envelope.mean, color, envelope.low, envelope.high)


def chart(
    title: str, figure: go.Figure, note: str = "", *, height: int = 300, wide: bool = False, min_width: int = 0
) -> Markup:
    """Return a figure as the page's script draws it, with its title and a note on how to read it; sizes in pixels."""
    figure.update_layout(template=_TEMPLATE, height=height)
    drawn = _escape(json.loads(figure.to_json()))
    caption = element("figcaption", element("b", title), element("span", note, class_="note") if note else None)
    # An escaped `<` cannot end the script element.
    data = element("script", Markup(json.dumps(drawn).replace("<", "\\u003c")), type="application/json")
    plot = element(
        "div", class_="plot", role="img", aria_label=title, style=f"height:{height}px;min-width:{min_width}px"
    )
    return element("figure", caption, element("div", plot, data, class_="scroll"), class_="wide" if wide else None)


def _escape(value: Any, key: str = "") -> Any:
    """Escape the texts of a figure: plotly takes some tags in them for formatting and links."""
    if isinstance(value, dict):
        return {name: _escape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_escape(inner, key) for inner in value]
    return escape(value, quote=False) if isinstance(value, str) and key != "hovertemplate" else value


def lines(title: str, column: str, drawn: Sequence[Line], x_name: str, note: str = "") -> Markup:
    """Draw lines over the same axis; the name of `column` gives the unit."""
    extremes = [edge for line in drawn for edge in (line.y, line.low, line.high) if edge is not None]
    size, axis = _value_axis(column, np.concatenate(extremes))
    figure = go.Figure(layout={"xaxis": {"title": {"text": x_name}}, "yaxis": axis, "hovermode": "x unified"})
    for line in drawn:
        band, hover = None, "%{y}"
        if line.low is not None and line.high is not None:
            band = np.stack([line.low, line.high], axis=1) / size
            hover = "%{y} (%{customdata[0]:.4~g} to %{customdata[1]:.4~g})"
            for edge, fill in zip(band.T, (None, "tonexty"), strict=True):
                style = {"fillcolor": _transparent(line.color), "line": {"width": 0}, "mode": "lines"}
                figure.add_scatter(x=line.x, y=edge, fill=fill, hoverinfo="skip", showlegend=False, **style)
        figure.add_scatter(
            x=line.x,
            y=line.y / size,
            customdata=band,
            name=line.name,
            line={"color": line.color, "width": 1.8},
            hovertemplate=hover,
            showlegend=len(drawn) > 1 or line.name != title,
        )
    return chart(title, figure, note)


def curves(title: str, column: str, points: Mapping[str, tuple[Floats, Floats]], note: str = "") -> Markup:
    """Draw the curves of many trials over steps; they fade from the first, the best."""
    size, axis = _value_axis(column, np.concatenate([y for _, y in points.values()]))
    figure = go.Figure(layout={"xaxis": {"title": {"text": "step"}}, "yaxis": axis, "hovermode": "closest"})
    for place, (trial, (x, y)) in reversed([*enumerate(points.items())]):
        some = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
        style = _trial_style(trial, 1 - place / len(points), place == 0)
        figure.add_scatter(x=x[some], y=y[some] / size, **style)
    return chart(title, figure, note, height=380, wide=True)


def _trial_style(trial: str, score: float, is_best: bool) -> dict[str, Any]:
    """Return the style of a trial's line: the better its score (0 to 1), the stronger."""
    line = {"color": BEST if is_best else COLORS[0], "width": 2.5 if is_best else 1.4}
    return {"name": trial, "line": line, "opacity": 1 if is_best else 0.1 + 0.8 * score, "showlegend": False}


def stacks(title: str, spans: pd.DataFrame, name: str, note: str = "") -> Markup:
    """Draw a bar for each row of a table of spans, stacked from its columns; `name` is what a row is."""
    size, axis = _value_axis("total_s", spans.clip(lower=0).sum(axis=1).to_numpy(), from_zero=True)
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
        figure.add_bar(x=labels, y=spans[column].to_numpy(dtype=float) / size, name=column, marker=color)
    return chart(title, figure, note, height=380, wide=True)


def scatter(title: str, points: pd.DataFrame, front: Collection[str], note: str = "") -> Markup:
    """Draw a dot for each trial of a table with two columns; a line joins the trials of the front."""
    across, up = map(str, points.columns)
    (x_size, x), (y_size, y) = (_value_axis(name, points[name].to_numpy(dtype=float)) for name in (across, up))
    x["title"], y["title"] = {"text": across}, {"text": up}
    figure = go.Figure(layout={"xaxis": x, "yaxis": y, "hovermode": "closest"})
    is_best = points.index.isin([*front])
    for name, rows, mode, marker in (
        ("dominated", points[~is_best], "markers", {"color": GREY, "size": 7, "opacity": 0.7}),
        ("on the Pareto front", points[is_best].sort_values(across), "lines+markers", {"color": BEST, "size": 10}),
    ):
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
    return chart(title, figure, note, height=380, wide=True)


def parallel(title: str, trials: pd.DataFrame, score: pd.Series, note: str = "") -> Markup:
    """Draw a line for each row through its columns; the better its score (0 to 1), the stronger.

    Columns are numbers or text. A line ends where a trial has no value. These are plain lines because plotly's own
    parallel coordinates need WebGL and `eval`, which the page forbids.
    """
    columns = [str(column) for column in trials.columns]
    scales = [_heights(trials[name]) for name in columns]
    figure = go.Figure(
        layout={
            "xaxis": {
                "tickvals": [*range(len(columns))],
                "ticktext": [_shorten(name) for name in columns],
                "tickangle": 0,
                "side": "top",
                "range": [-0.4, len(columns) - 0.4],
                "fixedrange": True,
            },
            "yaxis": {"visible": False, "range": [-0.05, 1.05], "fixedrange": True},
            "annotations": [
                {"x": place, "y": height, "text": text, "showarrow": False, "xanchor": "left", "xshift": 4}
                for place, (_, labels) in enumerate(scales)
                for height, text in labels.items()
            ],
            "hovermode": "closest",
            "hoverdistance": 30,
        }
    )
    heights = np.stack([values for values, _ in scales], axis=1)
    order = score.reindex(trials.index).fillna(0).sort_values(kind="stable")
    for trial, strength in order.items():
        figure.add_scatter(
            x=[*range(len(columns))],
            y=heights[trials.index.get_loc(trial)],
            mode="lines",
            text=[quantities.format_value(name, trials.at[trial, name]) for name in columns],
            customdata=columns,
            hovertemplate="%{customdata}: %{text}<extra>%{fullData.name}</extra>",
            **_trial_style(str(trial), strength, trial == order.index[-1]),
        )
    return chart(title, figure, note, height=400, wide=True, min_width=AXIS_PIXELS * len(columns))


def _shorten(name: str) -> str:
    """Shorten a long name to its end, which differs most between dotted paths."""
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def _heights(values: pd.Series) -> tuple[Floats, dict[float, str]]:
    """Return the heights of a column's values, 0 to 1, and the labels of some heights."""
    known = values.dropna()
    name = str(values.name)
    if not all(is_number(value) for value in known):
        texts = sorted({str(value) for value in known})
        steps = {text: place / max(1, len(texts) - 1) for place, text in enumerate(texts)}
        shown = texts[:: math.ceil(len(texts) / MOST_LABELS)]
        places = np.array([steps.get(str(value), np.nan) for value in values], dtype=float)
        return places, {steps[text]: text for text in shown}
    numbers = np.array(values, dtype=float)
    is_log = _spans_magnitudes(name, numbers)
    scaled = np.log(numbers) if is_log else numbers
    low, extent = np.nanmin(scaled), float(np.nanmax(scaled) - np.nanmin(scaled)) or 1.0
    heights = (scaled - low) / extent
    labelled = np.unique(heights[np.isfinite(heights)])
    if len(labelled) > MOST_LABELS:
        labelled = np.linspace(0, 1, 5)
    marks = np.exp(low + extent * labelled) if is_log else low + extent * labelled
    return heights, {
        at: quantities.format_value(name, float(f"{mark:.3g}"))
        for at, mark in zip(labelled.tolist(), marks, strict=True)
    }


def heat_maps(title: str, grids: Mapping[str, Grid], note: str) -> Markup:
    """Draw tables of seconds by rank and iteration, of which the reader chooses one."""
    figure = go.Figure()
    some = next(iter(grids.values()))
    rows, columns = (
        [str(last) if first == last else f"{first}-{last}" for first, last in groups.tolist()]
        for groups in (some.rows, some.columns)
    )
    for place, (name, grid) in enumerate(grids.items()):
        top = float(np.nanquantile(grid.values, TOP))
        unit, size = _scale("s", top)
        figure.add_heatmap(
            z=np.float32(grid.values / size),
            x=columns,
            y=rows,
            name=name,
            zmin=0,
            zmax=top / size,
            colorscale="Viridis",
            colorbar={"ticksuffix": f" {unit}", "thickness": 12},
            hovertemplate=f"rank %{{y}}, iteration %{{x}}<br>%{{z:.4~g}} {unit}<extra></extra>",
            visible=place == 0,
        )
    buttons = [
        {"label": name, "method": "restyle", "args": [{"visible": [other == name for other in grids]}]}
        for name in grids
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": False}
    figure.update_layout(updatemenus=[menu], margin={"t": 40})
    figure.update_xaxes(type="category", title_text="iteration", nticks=8)
    figure.update_yaxes(type="category", title_text="rank", nticks=8, autorange="reversed")
    return chart(title, figure, note, height=min(480, 160 + 24 * len(rows)), wide=True)


def _value_axis(name: str, values: Floats, *, from_zero: bool = False) -> tuple[float, dict[str, Any]]:
    """Return the size of an axis's unit in the column's unit, and the axis."""
    finite = values[np.isfinite(values)]
    unit, size = _scale(quantities.get_unit(name), float(np.abs(finite).max(initial=0.0)))
    axis: dict[str, Any] = {"ticksuffix": unit if unit == "/s" else f" {unit}".rstrip(), "hoverformat": ".4~g"}
    if from_zero or len(np.unique(finite)) == 1:  # plotly draws a constant between -1 and 1
        axis["rangemode"] = "tozero"
    elif _spans_magnitudes(name, finite):
        axis |= {"type": "log", "dtick": "D2" if finite.max() / finite.min() < 1e3 else 1}
    return size, axis


def _spans_magnitudes(name: str, values: Floats) -> bool:
    """Return whether a column's values are so far apart that their axis is logarithmic; bytes never are."""
    known = values[np.isfinite(values)]
    if quantities.get_unit(name) == "bytes" or not len(known) or known.min() <= 0:
        return False
    return bool(known.max() / known.min() >= LOGARITHMIC_FROM)


def _scale(unit: str, largest: float) -> tuple[str, float]:
    """Return the unit in which to show numbers up to the largest, and its size in the given unit."""
    scales = {"s": _TIMES, "bytes": _SIZES}.get(unit, ((unit, 1.0),))
    return next((scale for scale in scales if largest >= scale[1]), scales[-1])


def _transparent(color: str) -> str:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return f"rgba({red},{green},{blue},0.25)"
