"""Markup: pieces of HTML. Text becomes markup here and nowhere else, and is escaped as it does."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """HTML, as against text that has yet to be escaped."""

    __slots__ = ()


Content = str | None
"""Markup as it is, text to be escaped, or nothing."""
_EMPTY = ("br", "circle", "image", "input", "line", "meta", "path", "rect", "wbr")


def element(tag: str, *children: Content, **attributes: str | float | bool | None) -> Markup:
    """An element. Of an attribute's name `_` stands for `-` and one at the end is left out; True is an empty one, None
    and False are none."""
    names = "".join(
        _attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    if tag in _EMPTY and not children:
        return Markup(f"<{tag}{names}/>")
    return Markup(f"<{tag}{names}>{joined(children)}</{tag}>")


def joined(children: Iterable[Content]) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def _attribute(name: str, value: str | float | bool) -> str:
    shown = name.rstrip("_").replace("_", "-") if name != "viewBox" else name
    return f' {shown}="{"" if value is True else escape(str(value))}"'
