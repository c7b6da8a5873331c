"""HTML tables with rounded values, which show all digits on hover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.report.markup import Content, Markup, concatenate, element
from orchestrator.stats.aggregate import quantities

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

    A cell is a value with the unit of its column's name, a Quantity, a Share, or markup. `headings` replace names of
    columns.
    """
    cells = [[make_cell(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    head = [
        element("th", (headings or {}).get(name, name), scope="col", class_=_choose_class(number, cells))
        for number, name in enumerate(columns)
    ]
    body = [element("tr", *_make_row(row)) for row in cells]
    parts = element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)
    return element("div", element("table", *parts, **attributes), class_="scroll")


def make_facts_table(caption: Content, entries: Mapping[str, Any]) -> Markup:
    """Make a table of names and values, without empty ones."""
    rows = [(name, value if isinstance(value, Markup) else Quantity(name, value)) for name, value in entries.items()]
    return make_table(caption, ("", "value"), [row for row in rows if row[1] != Quantity(row[0], None)], class_="facts")


def _choose_class(number: int, rows: Sequence[Sequence[Cell]]) -> str | None:
    """Return `numbers` for a column of numbers, except the first column."""
    exact = next((exact for content, exact in (row[number] for row in rows) if content), None)
    return "numbers" if number and exact is not None else None


def _make_row(cells: Sequence[Cell]) -> Iterable[Markup]:
    for number, (content, title) in enumerate(cells):
        yield element("td", content, title=title) if number else element("th", content, scope="row", title=title)


def make_cell(name: str, value: Any) -> Cell:
    if isinstance(value, Markup):
        return value, None
    if isinstance(value, Share):
        bar = element("span", class_="bar", style=f"width:{max(0.0, min(1.0, value.part)):.2%}")
        return concatenate([bar, f"{value.part:.1%}"]), format_exactly("share", value.part)
    if isinstance(value, Quantity):
        return make_cell(value.name, value.value)
    return quantities.format_value(name, value), format_exactly(name, value)


def list_values(values: Mapping[Any, Any]) -> str:
    """Format names and values on one line, without empty ones."""
    return ", ".join(
        f"{name} {shown}" for name, value in values.items() if (shown := quantities.format_value(str(name), value))
    )


def format_exactly(name: str, value: Any) -> str | None:
    """Format a number with all its digits and its unit; None for other values."""
    if not quantities.is_number(value):
        return None
    return f"{value.item() if isinstance(value, np.number) else value!r} {quantities.get_unit(name)}".rstrip()
