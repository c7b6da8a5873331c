"""Markup: pieces of HTML. Only this module turns text into markup, and escapes it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """HTML, as opposed to text."""

    __slots__ = ()


Content = str | None
"""Markup, text to be escaped, or None."""
_EMPTY = ("input", "meta")


def element(tag: str, *children: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element. In an attribute's name `_` becomes `-`, or goes at the end; None and False omit it."""
    names = "".join(
        _attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    if tag in _EMPTY and not children:
        return Markup(f"<{tag}{names}/>")
    return Markup(f"<{tag}{names}>{joined(children)}</{tag}>")


def joined(children: Iterable[Content]) -> Markup:
    """Concatenate pieces."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _attribute(name: str, value: str | float | bool) -> str:
    shown = name.rstrip("_").replace("_", "-")
    return f' {shown}="{"" if value is True else escape(str(value))}"'
