"""Heat maps: an image of a table of numbers, with its numbers for hovering."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.report import axes, palette
from orchestrator.report.binning import Grid
from orchestrator.report.charts import frame
from orchestrator.report.markup import Markup, element
from orchestrator.report.tables import table
from orchestrator.stats.aggregate import quantities

TOP = 0.95
"""Quantile with the last colour; larger cells have it too."""


def heat_map(title: str, column: str, grid: Grid, note: str) -> Markup:
    """Draw a grid of ranks by iterations, first row on top; `column` tells the unit."""
    known = grid.values[np.isfinite(grid.values)]
    low, top, most = float(known.min()), float(np.quantile(known, TOP)), float(known.max())
    at = np.nanargmax(grid.values)
    worst = f"rank {grid.rows.flat[at]} at iteration {grid.columns.flat[at]}"
    picture = element(
        "img",
        src=f"data:image/png;base64,{_base64(png(_shades(grid.values, low, top)))}",
        alt="",
        class_="heat",
        data_values=_base64(grid.values.astype("<f4").tobytes()),
        data_rows=_packed(grid.rows),
        data_columns=_packed(grid.columns),
        data_width=grid.values.shape[1],
        data_height=grid.values.shape[0],
        data_row="rank",
        data_column="iteration",
        data_unit=quantities.unit(column),
    )
    x = axes.category_axis([quantities.number(int(last)) for _, last in grid.column_groups], most=6)
    down = axes.category_axis(_stretches(grid.row_groups))
    y = axes.Axis(down.high, down.low, down.ticks)
    size = f"{len(grid.row_groups)} by {len(grid.column_groups)} cells"
    label = f"{title}: heat map of {size}; the largest is {quantities.text(column, most)}, {worst}"
    upper = f"{quantities.text(column, top)}{' and more' if most > top else ''}"
    scale = element("p", quantities.text(column, low), element("span", class_="shades"), upper, class_="scale")
    note = f"{note} The largest is {quantities.text(column, most)}: {worst}.".strip()
    return frame.figure(
        title,
        frame.plot([], x, y, label, over=picture, style=f"--rows:{len(grid.row_groups)}", class_="plot short"),
        note=note,
        legend=scale,
        data=_table(title, column, grid),
        wide=True,
    )


def _table(title: str, column: str, grid: Grid) -> Markup:
    """Summarize each row of the image."""
    rows = []
    for name, values, origin, at in zip(_stretches(grid.row_groups), grid.values, grid.rows, grid.columns, strict=True):
        if np.isfinite(values).any():
            largest = int(np.nanargmax(values))
            rows.append((name, np.nanmedian(values), values[largest], origin[largest], at[largest]))
    columns = ("rank", f"median/{column}", f"largest/{column}", "of rank", "at iteration")
    return table(title, columns, rows, headings={columns[1]: "median of its cells", columns[2]: "largest"})


def _stretches(groups: NDArray[np.int64]) -> list[str]:
    return [str(last) if first == last else f"{first}-{last}" for first, last in groups.tolist()]


def _shades(values: NDArray[np.float64], low: float, top: float) -> NDArray[np.uint8]:
    """Return the colour of each value, from 1; 0 is transparent."""
    span = top - low if top > low else 1.0
    places = np.clip((values - low) / span, 0, 1) * (palette.SHADES - 1)
    return np.where(np.isfinite(values), np.nan_to_num(places).round() + 1, 0).astype(np.uint8)


def png(shades: NDArray[np.uint8]) -> bytes:
    """Return an image with a pixel for each number; 0 is transparent."""
    picture = Image.frombytes("P", shades.shape[::-1], shades.tobytes())
    picture.putpalette(bytes(3) + palette.shades().tobytes())
    picture.save(written := BytesIO(), "PNG", transparency=0)
    return written.getvalue()


def _packed(numbers: NDArray[np.int64]) -> str:
    """Encode whole numbers in as few bytes each as the largest takes."""
    return _base64(numbers.astype(np.min_scalar_type(int(numbers.max())).newbyteorder("<")).tobytes())


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
