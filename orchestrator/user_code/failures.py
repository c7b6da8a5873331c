"""Errors of user code, as errors of a config that name its line."""

import dis
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hooks import hook
from hooks.errors import WrongHook, add_article, format_error
from orchestrator.errors import ConfigError

_OUR_FILES = (
    "<frozen ",
    "importlib",
    "contextlib.py",
    "import_path.py",
    str(Path(hook.__file__)),
    str(Path(__file__).parents[1]),
)


@contextmanager
def catch_user_errors(path: str, failure: str = "") -> Iterator[None]:
    """Raise ConfigError at `path` for any exception in the block but Ctrl-C.

    The message begins with `failure`. Without one, a ValueError is reported by its own message
    alone.
    """
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not raised_in_python(error.__traceback__):
            raise
        if isinstance(error, WrongHook):
            raise ConfigError.at(path, f"{error}{_find_raising_line(error)}") from error
        text = error.msg if isinstance(error, SyntaxError) else format_error(error)
        if isinstance(error, ValueError) and text and not failure:
            raise ConfigError.at(path, text) from error
        message = f"{failure}: " if failure else ""
        message += f"{type(error).__name__}: {text}"
        if isinstance(error, SystemExit):
            message += " (it tries to end the process)"
        raise ConfigError.at(path, f"{message}{_find_raising_line(error)}") from error


def call_for_mapping(method: Callable[[], Any], expected: str) -> Mapping[Any, Any]:
    """Call a method of the task that must return a mapping; may raise ConfigError."""
    with catch_user_errors("task", f"{method.__qualname__}() failed"):
        value = method()
    if isinstance(value, Mapping):
        return value
    message = (
        f"{method.__qualname__}() must return {expected}, got {add_article(type(value).__name__)}"
    )
    raise ConfigError.at("task", f"{message}{find_source_location(method)}")


def find_source_location(method: Callable[..., Any]) -> str:
    """Return ` (file:line)` of a method, or nothing if it has no source."""
    try:
        return f" ({inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]})"
    except (OSError, TypeError):
        return ""


def _find_raising_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(ours in frame.filename for ours in _OUR_FILES):
            return f" ({frame.filename}:{frame.lineno})"
    return ""


def raised_in_python(trace: TracebackType | None) -> bool:
    """Return whether the innermost frame was at a `raise`, not in a call into C++."""
    if trace is None:
        return True
    while trace.tb_next:
        trace = trace.tb_next
    code = trace.tb_frame.f_code.co_code
    return dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS"
