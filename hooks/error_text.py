"""Texts of errors."""

from __future__ import annotations

import re

LONGEST = 2_000
"""Most characters of an error's text."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours, which Ray puts around names of tasks."""


def error_text(error: BaseException, longest: int = LONGEST) -> str:
    """Return the text of an error, shortened and without colours."""
    try:
        text = str(error)
    except Exception as failure:  # a __str__ of the user's own may raise anything
        return f"which has no message: its __str__ raises {type(failure).__name__}"
    text = _COLOURS.sub("", text)
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def describe_error(error: BaseException) -> str:
    """Return the class of an error and its text."""
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
