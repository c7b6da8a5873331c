"""Parts of every chart: figure, axes, legend and paths."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.report import tables
from orchestrator.report.axes import Axis
from orchestrator.report.markup import Content, Markup, element

WIDTH, HEIGHT = 2000, 1000
"""Coordinates of a drawing, from the upper left. It is stretched to the page; lines keep their width."""


def figure(
    title: str, drawn: Content, *, note: str = "", legend: Content = None, data: Content = None, wide: bool = False
) -> Markup:
    """Return a chart with its title, a note on how to read it, and its data as a table."""
    caption = element("figcaption", element("b", title), element("span", note, class_="note") if note else None)
    table = element("details", element("summary", "Data"), data, class_="data") if data else None
    return element("figure", caption, legend, drawn, table, class_="chart wide" if wide else "chart")


def plot(
    drawing: Iterable[Content], x: Axis, y: Axis, label: str, *, over: Content = None, **attributes: str | float | None
) -> Markup:
    """Return a drawing with axes. `label` is for screen readers; `over` covers the drawing."""
    lines = [
        element("path", d=f"M0,{height:.0f}L{WIDTH},{height:.0f}", class_="grid") for height in _up(y.tick_positions)
    ]
    drawn = element(
        "svg",
        *lines,
        *drawing,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    labels = [*_labels("y", "top", 1 - y.tick_positions, y), *_labels("x", "left", x.tick_positions, x)]
    return element("div", element("div", drawn, over, *labels, class_="area"), **{"class_": "plot", **attributes})


def legend(entries: Iterable[tuple[int, str]]) -> Markup:
    items = [element("li", element("span", class_=f"key k{kind}"), name) for kind, name in entries]
    return element("ul", *items, class_="legend", aria_hidden="true")


def path(x: ArrayLike, y: ArrayLike) -> str:
    """Return a line through positions on both axes, interrupted by NaN."""
    parts, command = [], "M"
    for across, height in _pixels(x, y):
        known = across == across and height == height
        if known:
            parts.append(f"{command}{across:.0f},{height:.0f}")
        command = "L" if known else "M"
    return "".join(parts)


def band(x: ArrayLike, low: ArrayLike, high: ArrayLike) -> str:
    """Return the area between two lines, without NaN."""
    across, lower, upper = (np.asarray(values, dtype=float) for values in (x, low, high))
    known = np.isfinite(across) & np.isfinite(lower) & np.isfinite(upper)
    if not known.any():
        return ""
    there = path(across[known], upper[known])
    return f"{there}L{path(across[known][::-1], lower[known][::-1])[1:]}Z"


def dots(x: ArrayLike, y: ArrayLike) -> str:
    """Return dots as lines of no length with round ends, which stay round when stretched."""
    return "".join(
        f"M{across:.0f},{height:.0f}h0" for across, height in _pixels(x, y) if across == across and height == height
    )


def _pixels(x: ArrayLike, y: ArrayLike) -> Iterable[tuple[float, float]]:
    return zip((np.asarray(x, dtype=float) * WIDTH).tolist(), _up(y).tolist(), strict=True)


def _up(positions: ArrayLike) -> NDArray[np.float64]:
    """Convert positions from below to heights from above."""
    heights: NDArray[np.float64] = (1 - np.asarray(positions, dtype=float)) * HEIGHT
    return heights


def _labels(side: str, edge: str, positions: NDArray[np.float64], axis: Axis) -> Iterable[Markup]:
    for position, (_, text) in zip(positions, axis.ticks, strict=True):
        yield element("span", text, class_=side, style=f"{edge}:{position:.2%}", aria_hidden="true")


def trial_path(trial: str, values: Mapping[Hashable, Any], d: str, class_: str, style: str | None = None) -> Markup:
    """Return a trial's path, which can be selected, and shows its values on hover."""
    return element(
        "path",
        element("title", f"{trial}: {tables.list_values(values)}"),
        d=d,
        class_=class_,
        style=style,
        data_trial=trial,
    )


def choice(name: str, panels: Sequence[tuple[str, Markup]]) -> Markup:
    """Return panels of which the reader chooses one, without a script."""
    if len(panels) == 1:
        return panels[0][1]
    pieces: list[Content] = []
    for place, (title, panel) in enumerate(panels):
        key = f"{name}-{place}"
        chosen = element("input", type="radio", name=name, id=key, checked=place == 0)
        pieces += [chosen, element("label", title, for_=key), element("div", panel, class_="panel")]
    return element("div", *pieces, class_="choice")
