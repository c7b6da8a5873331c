"""Scatter: trials by two of their numbers, and those that no other one beats."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.report.tables import table


def scatter(title: str, points: pd.DataFrame, front: Collection[str], note: str = "") -> Markup:
    """A dot for each row of a table of two columns, across and up; the index names the trial. Those of the front are
    joined, in another colour and larger."""
    across, up = (str(name) for name in points.columns)
    x, y = axes.axis(across, points[across]), axes.axis(up, points[up])
    best = points[points.index.isin(front)].sort_values(across)
    others = points[~points.index.isin(front)]
    drawing = [
        element("path", d=frame.path(x.positions(best[across]), y.positions(best[up])), class_="k1 front"),
        *(_dot(str(name), x, y, row, "k0 dot") for name, row in others.iterrows()),
        *(_dot(str(name), x, y, row, "k1 dot best") for name, row in best.iterrows()),
    ]
    label = (
        f"{title}: {len(points)} trials, {len(best)} of which no other one beats: {', '.join(map(str, best.index[:9]))}"
    )
    rows = [(str(name), *row.tolist(), "yes" if name in best.index else "") for name, row in points.iterrows()]
    return frame.figure(
        title,
        frame.plot(drawing, x, y, label),
        note=note,
        legend=frame.legend([(1, "no other trial beats it"), (0, "another trial beats it")]),
        data=table(title, ("trial", across, up, "front"), rows),
        wide=True,
    )


def _dot(name: str, x: axes.Axis, y: axes.Axis, row: pd.Series, look: str) -> Markup:
    across, up = row.tolist()
    return frame.trial_path(name, row.to_dict(), frame.dots(x.positions([across]), y.positions([up])), look)
