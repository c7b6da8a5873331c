"""Markup: pieces of HTML. Only this module turns text into markup, which it escapes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """A string of HTML, as opposed to text."""

    __slots__ = ()


Content = str | None
"""Markup, text to escape, or None."""
_VOID_TAGS = ("input", "meta")


def element(tag: str, *children: Content, **attributes: str | float | bool | None) -> Markup:
    """Make an element. In attribute names, `_` becomes `-`, and is dropped at the end. None and False omit them."""
    names = "".join(
        _format_attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    if tag in _VOID_TAGS and not children:
        return Markup(f"<{tag}{names}/>")
    return Markup(f"<{tag}{names}>{concatenate(children)}</{tag}>")


def concatenate(children: Iterable[Content]) -> Markup:
    """Concatenate markup and escaped text."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _format_attribute(name: str, value: str | float | bool) -> str:
    attribute = name.rstrip("_").replace("_", "-")
    return f' {attribute}="{"" if value is True else escape(str(value))}"'
