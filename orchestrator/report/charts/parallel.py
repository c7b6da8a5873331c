"""Parallel coordinates: every trial as a line through what it chose and what it reached."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from orchestrator.report import axes, units
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.stats.quantities import is_number

_MARGIN = 0.04
"""Room above and below, so that no line runs along the edge."""
_MOST_LABELS = 6


def parallel(
    title: str, trials: pd.DataFrame, merit: pd.Series, logarithmic: Collection[str] = (), note: str = ""
) -> Markup:
    """A line for each row, through its columns from left to right; the better its merit (0 to 1), the stronger.

    Columns are numbers, or anything else as text; `logarithmic` are those whose numbers spread over magnitudes. A line
    ends where a trial has no value.
    """
    columns = [str(column) for column in trials.columns]
    across = (np.arange(len(columns)) + 0.5) / len(columns)
    scales = {name: _Scale(trials[name], name in logarithmic) for name in columns}
    heights = pd.DataFrame({name: scales[name].places(trials[name]) for name in columns}, index=trials.index)
    order = merit.reindex(trials.index).fillna(0).sort_values(kind="stable")
    drawing = [
        _line(str(trial), across, heights.loc[trial], trials.loc[trial], float(order[trial])) for trial in order.index
    ]
    posts = [element("path", d=frame.path([at, at], [_MARGIN, 1 - _MARGIN]), class_="post") for at in across]
    label = f"{title}: {len(trials)} trials through {', '.join(columns)}"
    none = axes.Axis(0, 1, ())
    labels = [_labels(name, at, 1 / len(columns), scales[name]) for name, at in zip(columns, across, strict=True)]
    drawn = frame.plot(
        [*posts, *drawing],
        none,
        none,
        label,
        over=element("div", *labels, aria_hidden="true"),
        style=f"--columns:{len(columns)}",
    )
    return frame.figure(title, element("div", drawn, class_="scroll parallel"), note=note, wide=True)


class _Scale:
    """One of the upright axes: numbers, or a place for each text."""

    def __init__(self, values: pd.Series, logarithmic: bool) -> None:
        known = values.dropna()
        numbers = all(is_number(value) for value in known)
        self.texts = None if numbers else sorted({str(value) for value in known})
        if self.texts is None:
            self.axis = axes.axis(str(values.name), known.astype(float), logarithmic=logarithmic or None)
        else:
            self.axis = axes.categories(self.texts, most=_MOST_LABELS)

    def places(self, values: pd.Series) -> list[float]:
        known = values.map(self._place, na_action="ignore").astype(float)
        return list(_MARGIN + (1 - 2 * _MARGIN) * self.axis.places(known))

    def ticks(self) -> list[tuple[float, str]]:
        places = self.axis.places([value for value, _ in self.axis.ticks])
        return [
            (float(_MARGIN + (1 - 2 * _MARGIN) * place), text)
            for place, (_, text) in zip(places, self.axis.ticks, strict=True)
        ]

    def _place(self, value: Any) -> float:
        return float(value) if self.texts is None else float(self.texts.index(str(value)))


def _line(trial: str, across: NDArray[np.float64], heights: pd.Series, values: pd.Series, merit: float) -> Markup:
    told = ", ".join(
        f"{name} {units.told(str(name), value)}"
        for name, value in values.items()
        if value == value and value is not None
    )
    return element(
        "path",
        element("title", f"{trial}: {told}"),
        d=frame.path(across, heights),
        class_="through",
        style=f"--merit:{merit:.0%}",
        data_trial=trial,
    )


def _labels(name: str, at: float, width: float, scale: _Scale) -> Markup:
    # A long path is broken at its dots.
    words = [piece for word in name.replace(".", ".\0").split("\0") for piece in (word, element("wbr"))]
    heading = element("b", *words, style=f"left:{at - width / 2:.2%};width:{width:.2%}")
    return element(
        "div",
        heading,
        *(element("span", text, style=f"left:{at:.2%};top:{1 - place:.2%}") for place, text in scale.ticks()),
    )
