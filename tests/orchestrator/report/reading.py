"""Pages read back: markup has to be well-formed, and its tables are lists again."""

from __future__ import annotations

from xml.etree import ElementTree

from orchestrator.report.markup import Content


def parsed(markup: Content) -> ElementTree.Element:
    """A piece of markup as a tree; fails where it is not well-formed."""
    return ElementTree.fromstring(f"<all>{markup}</all>")


def text_of(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def tables_of(markup: Content) -> dict[str, list[list[str]]]:
    """Each table by its caption, as lines of cells, the headings first."""
    return {
        text_of(caption): [[text_of(cell) for cell in row] for row in table.iter("tr")]
        for table in parsed(markup).iter("table")
        if (caption := table.find("caption")) is not None
    }


def exact_of(markup: Content, caption: str) -> list[list[str | None]]:
    """The titles of a table's cells, line by line, without the headings."""
    for table in parsed(markup).iter("table"):
        found = table.find("caption")
        if found is not None and text_of(found) == caption:
            return [[cell.get("title") for cell in row] for row in table.iter("tr")][1:]
    raise AssertionError(f"no table {caption!r}")
