"""Line charts over steps or iterations, with bands from the smallest to the largest value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.report import axes
from orchestrator.report.binning import Envelope, group_neighbours
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element, joined
from orchestrator.report.tables import table

MOST_POINTS = 120
"""Points of a trial's curve among others."""


@dataclass(frozen=True)
class Line:
    """A line, perhaps with a band."""

    name: str
    x: Any
    y: Any
    low: Any = None
    high: Any = None
    kind: int = 0
    """Colour of the palette."""
    dotted: bool = False
    """True if its points are marked."""
    trial: str | None = None
    """Its trial, for highlighting."""


def line_of(name: str, envelope: Envelope, kind: int = 0) -> Line:
    """Return the line of an envelope's means in its band."""
    return Line(name, envelope.at, envelope.mean, envelope.low, envelope.high, kind)


def lines(title: str, column: str, drawn: Sequence[Line], x_name: str, note: str = "") -> Markup:
    """Draw lines with the same axes; `column` tells the unit, `x_name` labels the horizontal axis."""
    x, y = _axes(column, drawn, x_name)
    label = f"{title}: {', '.join(line.name for line in drawn[:9])} over {x_name}, from {y.low:.4g} to {y.high:.4g}"
    pieces = [_draw(line, x, y) for line in drawn]
    legend = (
        frame.legend((line.kind, line.name) for line in drawn) if len(drawn) > 1 or drawn[0].name != title else None
    )
    return frame.figure(
        title,
        frame.plot(pieces, x, y, label, data_low=x.low, data_high=x.high, tabindex=0),
        note=_note(note, y, x_name),
        legend=legend,
        data=_table(title, column, drawn, x_name),
    )


def curves(title: str, column: str, drawn: Sequence[Line], x_name: str, note: str = "") -> Markup:
    """Draw the curves of many trials, which can be selected; they fade from the first, the best."""
    x, y = _axes(column, drawn, x_name)
    label = f"{title} of {len(drawn)} trials over {x_name}, from {y.low:.4g} to {y.high:.4g}"
    faded = [_draw(_thinned(line), x, y, f"--merit:{1 - place / len(drawn):.0%}") for place, line in enumerate(drawn)]
    columns = ("trial", "reports", f"smallest/{column}", f"largest/{column}", f"last/{column}")
    rows = [
        (line.trial, len(line.y), float(np.min(line.y)), float(np.max(line.y)), float(line.y[-1])) for line in drawn
    ]
    data = table(title, columns, rows, headings={name: name.partition("/")[0] for name in columns})
    return frame.figure(title, frame.plot(reversed(faded), x, y, label), note=_note(note, y, x_name), data=data)


def _thinned(line: Line) -> Line:
    """Average neighbouring points if there are many."""
    if len(line.x) <= MOST_POINTS:
        return line
    groups = group_neighbours(len(line.x), MOST_POINTS)
    sizes = np.bincount(groups)
    return replace(line, x=np.bincount(groups, line.x) / sizes, y=np.bincount(groups, line.y) / sizes)


def _axes(column: str, drawn: Sequence[Line], x_name: str) -> tuple[axes.Axis, axes.Axis]:
    x = np.concatenate([np.asarray(line.x, dtype=float) for line in drawn])
    y = np.concatenate([np.asarray(part, dtype=float) for line in drawn for part in _parts(line).values()])
    return axes.integer_axis(x_name, x), axes.axis(column, y)


def _note(note: str, y: axes.Axis, x_name: str) -> str:
    return " ".join(filter(None, [note, "Logarithmic." if y.logarithmic else "", f"Horizontal: {x_name}."]))


def _draw(line: Line, x: axes.Axis, y: axes.Axis, style: str | None = None) -> Markup:
    across, height = x.positions(line.x), y.positions(line.y)
    pieces = [element("title", line.name)] if line.trial else []
    if line.low is not None:
        pieces.append(
            element("path", d=frame.band(across, y.positions(line.low), y.positions(line.high)), class_="band")
        )
    pieces.append(element("path", d=frame.path(across, height), class_="line"))
    if line.dotted or len(across) == 1:
        pieces.append(element("path", d=frame.dots(across, height), class_="dots"))
    return element("g", joined(pieces), class_=f"k{line.kind}", style=style, data_trial=line.trial)


def _parts(line: Line) -> dict[str, Any]:
    if line.low is None:
        return {line.name: line.y}
    return {f"{line.name}, smallest": line.low, line.name: line.y, f"{line.name}, largest": line.high}


def _table(title: str, column: str, drawn: Sequence[Line], x_name: str) -> Markup:
    """Return a table with a row for each position of any line."""
    parts = {
        name: pd.Series(np.asarray(values, dtype=float), line.x).groupby(level=0).last()
        for line in drawn
        for name, values in _parts(line).items()
    }
    # The column's name in each heading tells the unit.
    headings = {f"{number}/{column}": name for number, name in enumerate(parts)}
    rows = [
        (int(at) if float(at).is_integer() else at, *values)
        for at, *values in pd.DataFrame(parts).itertuples(name=None)
    ]
    return table(title, (x_name, *headings), rows, headings=headings)
