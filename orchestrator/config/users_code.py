"""What is raised by code that a config names: its modules as they are imported, its classes as they are made and asked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from orchestrator.errors import ConfigError, Problem

P = ParamSpec("P")
R = TypeVar("R")

_OURS = ("importlib", "contextlib.py", "import_path.py", str(Path(__file__).parent))
"""Of the files in a traceback, those that are not the user's."""


@contextmanager
def users_code(path: str, doing: str = "") -> Iterator[None]:
    """Makes whatever is raised within a problem at `path`: an exit too, as nothing that is checked may end the process that
    checks it. What was being done is said before a ValueError only where it is given. Ctrl-C goes on. Raises ConfigError."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        said = _text(error)
        message = said if isinstance(error, ValueError) and said and not doing else f"{type(error).__name__}: {said}"
        if isinstance(error, SystemExit):
            message += " (it tries to end the process)"
        raise ConfigError([Problem(path, f"{doing}: {message}{_place(error)}" if doing else message)]) from error


def asked(method: Callable[P, R], path: str, *args: P.args, **kwargs: P.kwargs) -> R:
    """What a method of the user's gives; raises ConfigError at `path` for whatever it raises."""
    with users_code(path, f"{method.__qualname__}() fails"):
        return method(*args, **kwargs)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a __str__ of the user's own may raise anything
        return "which has no message"


def _place(error: BaseException) -> str:
    """Where it was raised, of the user's own code, as ` (file:line)`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not any(ours in frame.filename for ours in _OURS)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
