"""Lists as GitHub reads them, for Python's Markdown, which wants four columns for each level."""

import re
from collections.abc import Iterator

_MARKER = re.compile(r"(?:[*+-]|\d+\.) +(?=\S)")
_INDENT = 4


def widen_lists(markdown: str) -> str:
    """Return a page with the content of each list item four columns to the right of its marker."""
    return "\n".join(_widen(markdown.split("\n")))


def _widen(lines: list[str]) -> Iterator[str]:
    columns: list[int] = []
    """Where the content of each open list item begins, as GitHub reads it."""

    is_code = False
    for line in lines:
        text = line.lstrip(" ")
        column = len(line) - len(text)
        if text and not is_code:
            while columns and column < columns[-1]:
                columns.pop()

        start = columns[-1] if columns else 0
        yield " " * (_INDENT * len(columns) + max(column - start, 0)) + text if text else line
        marker = _MARKER.match(text)
        if text.startswith("```"):
            is_code = not is_code
        elif marker and not is_code and column - start < _INDENT:
            columns.append(column + marker.end())
