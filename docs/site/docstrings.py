"""Docstrings of hooks and tables as Markdown, and the columns that they list."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

_EXAMPLE = re.compile(r"^\n((?: {4}.*\n|\n)+)(?=\S|\Z)", re.MULTILINE)
_SOURCE = re.compile(r"\s*\bSource:\s+(.+?)\.?\s*\Z", re.DOTALL)
_SECTION = re.compile(r"^(Columns|Metrics):\n((?: {4}.*(?:\n|\Z)|\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^\* ([^:]+?)(?: \((\w+)\))?: (.+?)(?=^\* |\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Column:
    """A column of a table, or several that share a meaning."""

    names: str
    """The names, in backticks, with commas between them."""

    dtype: str
    """Empty for float64."""

    meaning: str


@dataclass(frozen=True)
class Docstring:
    """A docstring in its parts."""

    summary: str
    """The first paragraph."""

    example: str
    """The indented block."""

    text: str
    """All other paragraphs."""

    source: str
    """Where the idea comes from."""

    columns: tuple[Column, ...]
    metrics: tuple[Column, ...]

    @classmethod
    def parse(cls, text: str) -> "Docstring":
        """Take a docstring apart. It may have an indented example, sections `Columns:` and
        `Metrics:` with a list each, and `Source:` as its last sentence."""
        text = inspect.cleandoc(text) + "\n"
        sections = {name: tuple(_read_items(items)) for name, items in _SECTION.findall(text)}
        text = _SECTION.sub("", text)
        source = _SOURCE.search(text)
        text = _SOURCE.sub("", text) + "\n"
        summary, _, rest = text.partition("\n\n")
        examples = _EXAMPLE.findall(f"\n{rest}")
        return cls(
            summary=" ".join(summary.split()),
            example=inspect.cleandoc("\n".join(examples)) if examples else "",
            text=_EXAMPLE.sub("\n", f"\n{rest}").strip(),
            source=" ".join(source[1].split()) if source else "",
            columns=sections.get("Columns", ()),
            metrics=sections.get("Metrics", ()),
        )


def _read_items(text: str) -> Iterator[Column]:
    for names, dtype, meaning in _ITEM.findall(inspect.cleandoc(text)):
        yield Column(" ".join(names.split()), dtype, " ".join(meaning.split()))
