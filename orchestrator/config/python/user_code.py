"""What is raised by code that a config names: its modules as they are imported, its classes as they are made and
asked."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hooks.error_text import error_text
from orchestrator.errors import ConfigError, Problem, raised_in_python

P = ParamSpec("P")
R = TypeVar("R")

_OURS = ("importlib", "contextlib.py", "import_path.py", str(Path(__file__).parent))
"""Of the files in a traceback, those that are not the user's."""


@contextmanager
def users_code(path: str, doing: str = "") -> Iterator[None]:
    """Makes whatever is raised within a problem at `path`: an exit too, as nothing that is checked may end the process
    that checks it. What was being done is said before a ValueError only where it is given. Ctrl-C goes on. Raises
    ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not raised_in_python(error.__traceback__):
            raise
        said = error_text(error)
        message = said if isinstance(error, ValueError) and said and not doing else f"{type(error).__name__}: {said}"
        if isinstance(error, SystemExit):
            message += " (it tries to end the process)"
        place = _place(error) if doing or not isinstance(error, ValueError) else ""
        raise ConfigError([Problem(path, f"{doing}: {message}{place}" if doing else f"{message}{place}")]) from error


def asked(method: Callable[P, R], path: str, *args: P.args, **kwargs: P.kwargs) -> R:
    """What a method of the user's gives; raises ConfigError at `path` for whatever it raises."""
    with users_code(path, f"{method.__qualname__}() fails"):
        return method(*args, **kwargs)


def given(method: Callable[[], Any], path: str, kind: type[R], wanted: str) -> R:
    """What a method of the user's gives, which must be of a kind; raises ConfigError at `path` for anything else."""
    value = asked(method, path)
    if isinstance(value, kind):
        return value
    message = f"{method.__qualname__}() gives a {type(value).__name__}, and must give {wanted}{source_location(method)}"
    raise ConfigError([Problem(path, message)])


def source_location(method: Callable[..., Any]) -> str:
    """Where a method is written, as ` (file:line)`; empty where that cannot be told."""
    try:
        return f" ({inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]})"
    except (OSError, TypeError):
        return ""


def _place(error: BaseException) -> str:
    """Where it was raised, of the user's own code, as ` (file:line)`."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(ours in frame.filename for ours in _OURS)
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
