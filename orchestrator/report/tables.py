"""Tables of the page: a caption, headings, and values as people read them with all their digits in the title."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.report import units
from orchestrator.report.markup import Content, Markup, element, together
from orchestrator.stats import quantities


@dataclass(frozen=True)
class Share:
    """A cell with a bar in it: a part of something, 0 to 1."""

    part: float


@dataclass(frozen=True)
class Quantity:
    """A cell whose unit is not that of its column."""

    name: str
    """What it is of, whose end tells the unit."""
    value: Any


def table(
    caption: Content,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    headings: Mapping[str, str] | None = None,
    aside: Collection[str] = (),
    marks: Iterable[Mapping[str, str | None]] | None = None,
    **attributes: str | bool | None,
) -> Markup:
    """A table whose first cells head their rows.

    A cell is a value, whose unit its column's name tells, a Quantity, a Share, or markup. `headings` are columns' names
    in other words, `aside` those that a choosable table folds away at first, `marks` further attributes of each row,
    `attributes` those of the table.
    """
    every = list(rows)
    names = [
        (name, (headings or {}).get(name, name), place > 0 and _of_numbers(name, place, every))
        for place, name in enumerate(columns)
    ]
    head = element(
        "tr",
        *(
            element("th", heading, scope="col", class_=numbers and "numbers", data_aside=name in aside)
            for name, heading, numbers in names
        ),
    )
    own = list(marks) if marks is not None else [{}] * len(every)
    body = together(element("tr", *_cells(columns, row), **mark) for row, mark in zip(every, own, strict=True))
    drawn = element("table", element("caption", caption), element("thead", head), element("tbody", body), **attributes)
    return element("div", drawn, class_="scroll")


def facts(caption: Content, entries: Mapping[str, Any]) -> Markup:
    """A table of names and values, of which those that are empty are left out."""
    rows = [(name, value if isinstance(value, Markup) else Quantity(name, value)) for name, value in entries.items()]
    return table(caption, ("", "value"), [row for row in rows if row[1] != Quantity(row[0], None)], class_="facts")


def _of_numbers(name: str, place: int, rows: Sequence[Sequence[Any]]) -> bool:
    """Whether the first of a column's cells that holds something is a number."""
    exact = (cell(name, row[place]) for row in rows)
    return next((title is not None for content, title in exact if content), False)


def _cells(columns: Sequence[str], row: Sequence[Any]) -> Iterable[Markup]:
    first, *others = [cell(name, value) for name, value in zip(columns, row, strict=True)]
    yield element("th", first[0], scope="row", title=first[1])
    for content, title in others:
        yield element("td", content, title=title)


def cell(name: str, value: Any) -> tuple[Content, str | None]:
    """What is shown of a value, and its title: a number with all its digits."""
    if isinstance(value, Markup):
        return value, None
    if isinstance(value, Share):
        bar = element("span", class_="bar", style=f"width:{max(0.0, min(1.0, value.part)):.2%}")
        return together([bar, f"{value.part:.1%}"]), units.exact("share", value.part)
    if isinstance(value, Quantity):
        return cell(value.name, value.value)
    return quantities.text(name, value), units.exact(name, value)
