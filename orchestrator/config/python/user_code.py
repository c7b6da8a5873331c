"""Errors raised by code that a config names: its modules at import, its classes when built and called."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hooks import hook
from hooks.errors import error_text
from orchestrator.errors import ConfigError, raised_in_python

R = TypeVar("R")

_OUR_FILES = ("importlib", "contextlib.py", "import_path.py", str(Path(hook.__file__)), str(Path(__file__).parent))


@contextmanager
def catch_user_errors(path: str, failure: str = "") -> Iterator[None]:
    """Raise ConfigError at `path` for any exception in the block, even SystemExit; Ctrl-C passes through.

    The message begins with `failure`. Without one, a ValueError is reported by its own message alone.
    """
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not raised_in_python(error.__traceback__):
            raise
        text = error.msg if isinstance(error, SyntaxError) else error_text(error)
        if isinstance(error, ValueError) and text and not failure:
            raise ConfigError.at(path, text) from error
        message = f"{failure}: " if failure else ""
        message += f"{type(error).__name__}: {text}"
        if isinstance(error, SystemExit):
            message += " (it tries to end the process)"
        raise ConfigError.at(path, f"{message}{_find_raising_line(error)}") from error


def call_and_check_type(kind: type[R], method: Callable[[], Any], path: str, expected: str) -> R:
    """Call a method of user code that must return a `kind`; raise ConfigError at `path` otherwise."""
    with catch_user_errors(path, f"{method.__qualname__}() failed"):
        value = method()
    if isinstance(value, kind):
        return value
    message = (
        f"{method.__qualname__}() must return {expected}, got a {type(value).__name__}{find_source_location(method)}"
    )
    raise ConfigError.at(path, message)


def find_source_location(method: Callable[..., Any]) -> str:
    """Return ` (file:line)` of a method, or nothing if it has no source."""
    try:
        return f" ({inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]})"
    except (OSError, TypeError):
        return ""


def _find_raising_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    frames = traceback.StackSummary(frame for frame in frames if not any(ours in frame.filename for ours in _OUR_FILES))
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
