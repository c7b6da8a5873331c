"""Intervals: a mean for each of several groups, and how far it may lie from there."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pandas as pd

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup
from orchestrator.report.tables import table


def intervals(title: str, groups: pd.DataFrame, metric: str, note: str = "") -> Markup:
    """An upright line from `low` to `high` and a dot at `mean` for each row, from left to right, the first in another
    colour; a click picks the `best` trial of it."""
    places = np.arange(1, len(groups) + 1)
    x = axes.axis("place", [0, len(groups) + 1])
    y = axes.axis(metric, groups[["mean", "low", "high"]].to_numpy(dtype=float))
    drawing = []
    for place, (number, row) in zip(places, groups.iterrows(), strict=True):
        across, kind = x.positions([place, place]), "k1" if place == 1 else "k0"
        told: dict[Hashable, object] = {
            "configuration": number,
            **{name: row[name] for name in ("mean", "low", "high", "n")},
        }
        drawing.append(
            frame.trial_path(
                str(row["best"]), told, frame.path(across, y.positions([row["low"], row["high"]])), f"{kind} front"
            )
        )
        drawing.append(
            frame.trial_path(
                str(row["best"]), told, frame.dots(across[:1], y.positions([row["mean"]])), f"{kind} dot best"
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
