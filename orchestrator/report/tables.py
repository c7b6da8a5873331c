"""Tables of HTML. Their values are rounded, and show all digits on hover."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator import units
from orchestrator.report.markup import Content, Markup, concatenate, element

Cell = tuple[Content, str | None]
"""Content and title of a cell."""


@dataclass(frozen=True)
class Share:
    """A cell with a bar: a share from 0 to 1."""

    part: float


@dataclass(frozen=True)
class Quantity:
    """A value whose unit differs from that of its column."""

    name: str
    """Name that gives the unit."""
    value: Any


def make_table(
    caption: Content,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    headings: Mapping[str, str] | None = None,
    **attributes: str | bool | None,
) -> Markup:
    """Make a table in which each row's first cell is its heading.

    A cell is a value with the unit of its column's name, a Quantity, a Share, or markup. `headings`
    rename columns.
    """
    cells = [_make_cells(columns, row) for row in rows]
    head = []
    for number, name in enumerate(columns):
        has_numbers = number > 0 and _has_numbers([row[number] for row in cells])
        kind = "numbers" if has_numbers else None
        head.append(element("th", (headings or {}).get(name, name), scope="col", class_=kind))
    parts = (
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *map(_make_row, cells)),
    )
    return element("div", element("table", *parts, **attributes), class_="scroll")


def _make_cells(columns: Sequence[str], row: Sequence[Any]) -> list[Cell]:
    return [make_cell(name, value) for name, value in zip(columns, row, strict=True)]


def _has_numbers(cells: Iterable[Cell]) -> bool:
    """Return whether the first cell with content is a number."""
    for content, exact in cells:
        if content:
            return exact is not None
    return False


def _make_row(cells: Sequence[Cell]) -> Markup:
    (heading, title), *others = cells
    return element(
        "tr",
        element("th", heading, scope="row", title=title),
        *(element("td", content, title=title) for content, title in others),
    )


def make_cell(name: str, value: Any) -> Cell:
    if isinstance(value, Markup):
        return value, None
    if isinstance(value, Share):
        bar = element("span", class_="bar", style=f"width:{max(0.0, min(1.0, value.part)):.2%}")
        return concatenate([bar, f"{value.part:.1%}"]), format_exactly("share", value.part)
    if isinstance(value, Quantity):
        return make_cell(value.name, value.value)
    return units.format_value(name, value), format_exactly(name, value)


def list_values(values: Mapping[Any, Any]) -> str:
    """Format names and values on one line, without empty ones."""
    shown = {name: units.format_value(str(name), value) for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value)


def format_exactly(name: str, value: Any) -> str | None:
    """Format a number with all its digits and its unit; None for other values."""
    if not units.is_number(value):
        return None
    plain = value.item() if isinstance(value, np.number) else value
    # script.js sorts by the number, and JavaScript reads no `inf`
    digits = repr(plain).replace("inf", "Infinity")
    return f"{digits} {units.get_unit(name)}".rstrip()
