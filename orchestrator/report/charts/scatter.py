"""Trials as dots: by two of their numbers, and means with intervals."""

from __future__ import annotations

from collections.abc import Collection, Hashable

import numpy as np
import pandas as pd

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.report.tables import table


def scatter(title: str, points: pd.DataFrame, front: Collection[str], note: str = "") -> Markup:
    """Draw a dot for each trial of a table with two columns; a line joins the trials of the front."""
    across, up = (str(name) for name in points.columns)
    x, y = axes.axis(across, points[across]), axes.axis(up, points[up])
    best = points[points.index.isin(front)].sort_values(across)
    others = points[~points.index.isin(front)]
    drawing = [
        element("path", d=frame.path(x.positions(best[across]), y.positions(best[up])), class_="k1 front"),
        *(_dot(str(name), x, y, row, "k0 dot") for name, row in others.iterrows()),
        *(_dot(str(name), x, y, row, "k1 dot best") for name, row in best.iterrows()),
    ]
    label = f"{title}: {len(points)} trials, {len(best)} on the Pareto front: {', '.join(map(str, best.index[:9]))}"
    rows = [(str(name), *row.tolist(), "yes" if name in best.index else "") for name, row in points.iterrows()]
    return frame.figure(
        title,
        frame.plot(drawing, x, y, label),
        note=note,
        legend=frame.legend([(1, "on the Pareto front"), (0, "dominated")]),
        data=table(title, ("trial", across, up, "front"), rows),
        wide=True,
    )


def _dot(name: str, x: axes.Axis, y: axes.Axis, row: pd.Series, look: str) -> Markup:
    across, up = row.tolist()
    return frame.trial_path(name, row.to_dict(), frame.dots(x.positions([across]), y.positions([up])), look)


def intervals(title: str, groups: pd.DataFrame, metric: str, note: str = "") -> Markup:
    """Draw a dot at `mean` and a line from `low` to `high` for each row; a click selects its `best` trial."""
    places = np.arange(1, len(groups) + 1)
    x = axes.axis("place", [0, len(groups) + 1])
    y = axes.axis(metric, groups[["mean", "low", "high"]].to_numpy(dtype=float))
    drawing = []
    for place, (number, row) in zip(places, groups.iterrows(), strict=True):
        across, kind = x.positions([place, place]), "k1" if place == 1 else "k0"
        shown: dict[Hashable, object] = {
            "configuration": number,
            **{name: row[name] for name in ("mean", "low", "high", "n")},
        }
        drawing.append(
            frame.trial_path(
                str(row["best"]), shown, frame.path(across, y.positions([row["low"], row["high"]])), f"{kind} front"
            )
        )
        drawing.append(
            frame.trial_path(
                str(row["best"]), shown, frame.dots(across[:1], y.positions([row["mean"]])), f"{kind} dot best"
            )
        )
    rows = [(str(number), *(row[name] for name in ("mean", "low", "high", "n"))) for number, row in groups.iterrows()]
    label = f"{title}: {len(groups)} configurations"
    data = table(title, ("configuration", metric, "low", "high", "n"), rows)
    return frame.figure(
        title,
        frame.plot(drawing, x, y, label),
        note=note,
        legend=frame.legend([(1, "the best"), (0, "another")]),
        data=data,
        wide=True,
    )
