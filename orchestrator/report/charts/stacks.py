"""Stacked bars."""

from __future__ import annotations

import pandas as pd

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.report.tables import table
from orchestrator.stats.aggregate import quantities

_GAP, _WIDEST = 0.15, 0.12
"""Space between bars, as a share; and the largest width of a bar, as a share of the chart."""
_LABELLED = 48
"""Characters that fit next to each other on a phone."""


def stacks(
    title: str, parts: pd.DataFrame, kinds: dict[str, int], name: str, note: str = "", *, trials: bool = False
) -> Markup:
    """Draw a bar for each row of `parts`, stacked from its columns.

    `kinds` are the colours of columns, `name` is what a row is; with `trials`, rows are trials and can be selected.
    """
    labels = [str(label) for label in parts.index]
    columns = [str(column) for column in parts.columns]
    x = axes.category_axis(labels, most=min(12, max(1, _LABELLED // max(map(len, labels)))))
    y = axes.axis(columns[0], parts.clip(lower=0).sum(axis=1), from_zero=True)
    total = parts.sum(axis=1)
    longest = str(total.idxmax())
    most = quantities.text(columns[0], float(total.max()))
    label = f"{title}: {len(labels)} bars; the longest is {name} {longest} with {most}"
    drawing = [
        element("g", *_bar(position, bar, parts.iloc[position], kinds, x, y), data_trial=bar if trials else None)
        for position, bar in enumerate(labels)
    ]
    rows = [(bar, *parts.iloc[position].tolist(), float(total.iloc[position])) for position, bar in enumerate(labels)]
    return frame.figure(
        title,
        frame.plot(drawing, x, y, label),
        note=note,
        legend=frame.legend((kinds[column], column) for column in columns),
        data=table(title, (name, *columns, "total_s"), rows, headings={"total_s": "total"}),
        wide=True,
    )


def _bar(
    position: int, label: str, values: pd.Series, kinds: dict[str, int], x: axes.Axis, y: axes.Axis
) -> list[Markup]:
    room = 1 / (x.high - x.low)
    width = min(room * (1 - _GAP), _WIDEST)
    left = (float(x.positions([position])[0]) - width / 2) * frame.WIDTH
    pieces, base, total = [], 0.0, float(values.sum())
    for column, value in values.items():
        if value > 0:
            foot, head = (float(at) * frame.HEIGHT for at in y.positions([base, base + value]))
            words = f"{label}: {column} {quantities.text(str(column), float(value))} ({value / total:.1%})"
            pieces.append(
                element(
                    "rect",
                    element("title", words),
                    x=round(left, 1),
                    width=round(width * frame.WIDTH, 1),
                    y=round(frame.HEIGHT - head, 1),
                    height=round(head - foot, 1),
                    class_=f"part k{kinds[str(column)]}",
                )
            )
            base += float(value)
    return pieces
