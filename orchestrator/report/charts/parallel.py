"""Parallel coordinates: each trial as a line through its values and metrics."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.stats.aggregate.quantities import is_number

_MARGIN = 0.04
"""Space above and below."""
_MOST_LABELS = 6


def parallel(
    title: str, trials: pd.DataFrame, merit: pd.Series, logarithmic: Collection[str] = (), note: str = ""
) -> Markup:
    """Draw a line for each row through its columns; the better its merit (0 to 1), the stronger.

    Columns are numbers or text; `logarithmic` ones have such an axis. A line ends where a trial has no value.
    """
    columns = [str(column) for column in trials.columns]
    across = (np.arange(len(columns)) + 0.5) / len(columns)
    scales, positions = {}, {}
    for name in columns:
        scales[name], numbers = _scale(trials[name], name in logarithmic)
        positions[name] = _height(scales[name].positions(numbers))
    heights = pd.DataFrame(positions, index=trials.index)
    order = merit.reindex(trials.index).fillna(0).sort_values(kind="stable")
    drawing = [
        frame.trial_path(
            trial,
            trials.loc[trial].to_dict(),
            frame.path(across, heights.loc[trial]),
            "through",
            f"--merit:{order[trial]:.0%}",
        )
        for trial in order.index
    ]
    posts = [element("path", d=frame.path([at, at], [_MARGIN, 1 - _MARGIN]), class_="post") for at in across]
    label = f"{title}: {len(trials)} trials through {', '.join(columns)}"
    bare = axes.Axis(0, 1, ())
    labels = [_labels(name, at, 1 / len(columns), scales[name]) for name, at in zip(columns, across, strict=True)]
    over = element("div", *labels, aria_hidden="true")
    drawn = frame.plot([*posts, *drawing], bare, bare, label, over=over, style=f"--columns:{len(columns)}")
    return frame.figure(title, element("div", drawn, class_="scroll parallel"), note=note, wide=True)


def _scale(values: pd.Series, logarithmic: bool) -> tuple[axes.Axis, pd.Series]:
    """Return a column's axis and its values as numbers."""
    known = values.dropna()
    if all(is_number(value) for value in known):
        return axes.axis(str(values.name), known.astype(float), logarithmic=logarithmic or None), values.astype(float)
    texts = sorted({str(value) for value in known})
    return axes.category_axis(texts, most=_MOST_LABELS), known.map(
        lambda value: float(texts.index(str(value)))
    ).reindex(values.index)


def _height(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    return _MARGIN + (1 - 2 * _MARGIN) * positions


def _labels(name: str, at: float, width: float, scale: axes.Axis) -> Markup:
    # Break a long path at its dots.
    words = [piece for word in name.replace(".", ".\0").split("\0") for piece in (word, element("wbr"))]
    heading = element("b", *words, style=f"left:{at - width / 2:.2%};width:{width:.2%}")
    texts = [
        element("span", text, style=f"left:{at:.2%};top:{1 - height:.2%}")
        for height, (_, text) in zip(_height(scale.tick_positions), scale.ticks, strict=True)
    ]
    return element("div", heading, *texts)
