"""Markup: pieces of HTML. Only this module turns text into markup, which it escapes."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """A string of HTML, as opposed to text."""

    __slots__ = ()


Content = str | None
"""Markup, text to escape, or None."""
_VOID_TAGS = ("img", "input", "link", "meta")


def element(tag: str, *children: Content, **attributes: str | float | bool | None) -> Markup:
    """Make an element. In attribute names, `_` becomes `-`, and is dropped at the end. None and
    False omit them."""
    names = ""
    for name, value in attributes.items():
        if value is not None and value is not False:
            text = "" if value is True else escape(str(value))
            names += f' {name.rstrip("_").replace("_", "-")}="{text}"'
    if tag in _VOID_TAGS and not children:
        return Markup(f"<{tag}{names}/>")
    return Markup(f"<{tag}{names}>{concatenate(children)}</{tag}>")


def concatenate(children: Iterable[Content]) -> Markup:
    """Concatenate markup and escaped text."""
    parts = [child if isinstance(child, Markup) else escape(child) for child in children if child]
    return Markup("".join(parts))
