"""Parallel coordinates: a line for each trial through its values and metrics."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from orchestrator import units
from orchestrator.report.binning import Floats
from orchestrator.report.charts.axes import needs_log_axis
from orchestrator.report.charts.chart import draw_chart
from orchestrator.report.charts.curves import make_trial_style
from orchestrator.report.markup import Markup
from orchestrator.units import is_number

MAX_LABELS = 6
"""Maximum number of labels on an axis."""
MAX_NAME_LENGTH = 22
"""Maximum length of an axis's name in characters."""
AXIS_PIXELS = 140
"""Width of an axis in pixels."""


def draw_parallel_coordinates(
    title: str, trials: pd.DataFrame, best: str | None, note: str = ""
) -> Markup:
    """Draw a line for each row through its columns, the best first. Worse ones are fainter.

    Columns are numbers or text. A line ends where a trial has no finite value. These are plain
    lines, because plotly's own parallel coordinates need WebGL and `eval`, which the page forbids.
    """
    columns = [str(column) for column in trials.columns]
    scales = [_scale_heights(trials[name]) for name in columns]
    figure = go.Figure(
        layout={
            "xaxis": _make_axis_of_columns(columns),
            "yaxis": {"visible": False, "range": [-0.05, 1.05], "fixedrange": True},
            "annotations": _make_labels([scale.labels for scale in scales]),
            "hovermode": "closest",
            "hoverdistance": 30,
        }
    )
    heights = np.stack([scale.heights for scale in scales], axis=1)
    for index, trial in reversed([*enumerate(trials.index)]):
        figure.add_scatter(
            x=[*range(len(columns))],
            y=heights[index],
            mode="lines",
            text=[units.format_value(name, trials.at[trial, name]) for name in columns],
            customdata=columns,
            hovertemplate="%{customdata}: %{text}<extra>%{fullData.name}</extra>",
            **make_trial_style(str(trial), 1 - index / len(trials), trial == best),
        )
    width = AXIS_PIXELS * len(columns)
    return draw_chart(title, figure, note, height=400, wide=True, min_width=width)


def _make_axis_of_columns(columns: Sequence[str]) -> dict[str, Any]:
    return {
        "tickvals": [*range(len(columns))],
        "ticktext": [_shorten(name) for name in columns],
        "tickangle": 0,
        "side": "top",
        "range": [-0.4, len(columns) - 0.4],
        "fixedrange": True,
    }


def _shorten(name: str) -> str:
    """Return the end of a long name: the end of a dotted path differs most from others."""
    return name if len(name) <= MAX_NAME_LENGTH else f"…{name[1 - MAX_NAME_LENGTH :]}"


def _make_labels(labels_by_column: Sequence[Mapping[float, str]]) -> list[dict[str, Any]]:
    annotations = []
    for index, labels in enumerate(labels_by_column):
        for height, text in labels.items():
            annotations.append(
                {
                    "x": index,
                    "y": height,
                    "text": text,
                    "showarrow": False,
                    "xanchor": "left",
                    "xshift": 4,
                }
            )
    return annotations


class _Scale(NamedTuple):
    """A column on its axis."""

    heights: Floats
    """Height of each value, from 0 to 1."""
    labels: dict[float, str]
    """Labels of some heights."""


def _scale_heights(values: pd.Series) -> _Scale:
    known = values.dropna()
    if all(is_number(value) for value in known):
        return _scale_numbers(str(values.name), np.array(values, dtype=float))

    texts = sorted({str(value) for value in known})
    steps = {text: index / max(1, len(texts) - 1) for index, text in enumerate(texts)}
    heights = np.array([steps.get(str(value), np.nan) for value in values], dtype=float)
    labels = {steps[text]: text for text in texts[:: math.ceil(len(texts) / MAX_LABELS)]}
    return _Scale(heights, labels)


def _scale_numbers(name: str, numbers: Floats) -> _Scale:
    numbers[np.isinf(numbers)] = np.nan
    is_log = needs_log_axis(name, numbers)
    scaled = np.log(numbers) if is_log else numbers
    low = float(np.nanmin(scaled))
    extent = float(np.nanmax(scaled)) - low or 1.0

    marks = np.unique(numbers[np.isfinite(numbers)])
    if len(marks) > MAX_LABELS:
        quarters = low + extent * np.array([0.25, 0.5, 0.75])
        if is_log:
            quarters = np.exp(quarters)
        rounded = [float(f"{quarter:.3g}") for quarter in quarters]
        marks = np.array([marks[0], *rounded, marks[-1]])
    marked_heights = ((np.log(marks) if is_log else marks) - low) / extent
    labels = [units.format_value(name, mark) for mark in marks]
    return _Scale((scaled - low) / extent, dict(zip(marked_heights.tolist(), labels, strict=True)))
