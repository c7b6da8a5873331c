"""An error's own words, which may be of any length or fail to be said. Any process."""

from __future__ import annotations

import re

LONGEST = 2_000
"""Characters that are told of an error."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's colours, which Ray puts around the names of its tasks, and a file or another terminal shows as signs."""


def error_text(error: BaseException, longest: int = LONGEST) -> str:
    """What an error says, no more of it than can be read."""
    try:
        text = str(error)
    except Exception as failure:  # a __str__ of the user's own may raise anything
        return f"which has no message: its __str__ raises {type(failure).__name__}"
    text = _COLOURS.sub("", text)
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def named_text(error: BaseException) -> str:
    """An error's class, and what it says."""
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
