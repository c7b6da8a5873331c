"""Messages about damaged content that readers leave out: logged once, or collected."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_log = logging.getLogger("hookyard")
_omissions: ContextVar[list[str] | None] = ContextVar("omissions", default=None)
"""Where `collecting_omissions` collects; None outside of it, where messages are logged."""


@cache
def warn_once(message: str) -> None:
    """Log a message once, although several readers may find the same damaged file."""
    _log.warning("%s", message)


def log_omission(place: object, what: str) -> None:
    """Tell that content of a damaged file is left out.

    Args:
        place: The file.
        what: The content, and why. Within `collecting_omissions` the message is this alone.
    """
    omissions = _omissions.get()
    if omissions is None:
        warn_once(f"{place} is damaged: {what}")
    else:
        omissions.append(what)


@contextmanager
def collecting_omissions() -> Iterator[list[str]]:
    """Collect the messages about content that is left out, instead of logging them."""
    omissions: list[str] = []
    token = _omissions.set(omissions)
    try:
        yield omissions
    finally:
        _omissions.reset(token)
