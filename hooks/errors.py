"""Errors of hooks, and texts of errors."""

import re
from collections.abc import Callable, Iterator

LONGEST = 2_000
"""Maximum length of an error's text, in characters."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colors, which Ray puts around the names of tasks."""

_SPELLED_WITH_VOWEL = "AEFHILMNORSX"
"""Letters whose names begin with a vowel, as those of abbreviations are spoken."""


class HookError(RuntimeError):
    """Failure of a hook in an event; the hook's own error is its `__cause__`."""

    def __init__(self, hook: str, event: str, message: str) -> None:
        super().__init__(message)
        self.hook = hook
        self.event = event

    def __reduce__(self) -> "tuple[type[HookError], tuple[str, str, str]]":
        return type(self), (self.hook, self.event, str(self))

    @classmethod
    def from_error(cls, hook: str, event: str, error: BaseException) -> "HookError":
        """Describe an error of a hook.

        Args:
            hook: Name of the hook.
            event: Name of the event.
            error: The error that the hook raised.

        Returns:
            The error, with hook and event in its message.
        """
        if isinstance(error, SettingError):
            return cls(hook, event, f"hooks.{hook}.{error}")
        if isinstance(error, TrainingFailed):
            return cls(hook, event, f"{hook} stopped the run: {error}")
        return cls(hook, event, f"hook '{hook}' failed in {event}: {describe_error(error)}")


class SettingError(ValueError):
    """A hook's setting that does not fit the task, found in training; the text begins with its
    name: `best: ...`."""


class TrainingFailed(ArithmeticError):
    """A failure of the training, such as a loss that is NaN, for which a hook ends the run."""


class WrongHook(TypeError):
    """A class of hooks has a method or a field that cannot work."""


def format_error(error: BaseException) -> str:
    """Return the text of an error, shortened and without colors."""
    try:
        text = str(error)
    except Exception as failure:  # a __str__ of the user's own may raise anything
        return f"which has no message: its __str__ raises {type(failure).__name__}"
    text = _COLORS.sub("", text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}... ({len(text):,} characters)"


def describe_error(error: BaseException) -> str:
    """Return the class of an error and its text."""
    text = format_error(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def walk_errors(
    error: BaseException, get_next: Callable[[BaseException], BaseException | None]
) -> Iterator[BaseException]:
    """Yield an error, the one that follows, and so on; each only once, because causes can form a
    cycle.

    Args:
        error: The error to begin with.
        get_next: Returns what follows an error, such as its cause; None after the last one.

    Yields:
        The errors, from the last one raised to the first.
    """
    visited: set[int] = set()
    current: BaseException | None = error
    # Not `while current`: a user's error with `__len__` or `__bool__` can be false.
    while current is not None and id(current) not in visited:
        yield current
        visited.add(id(current))
        current = get_next(current)


def get_cause(error: BaseException) -> BaseException | None:
    """Return the error from which an error was raised; None without one."""
    return error.__cause__


def get_cause_or_context(error: BaseException) -> BaseException | None:
    """Return the error from which an error was raised, or else the one that was being handled, as a
    traceback shows them; None without one."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def add_article(noun: str) -> str:
    """Put `a` or `an` before a noun, such as the name of a class: `an int`, `a UNet`, `an SGD`."""
    is_spelled = len(noun) > 1 and noun[:2].isupper()
    vowels = _SPELLED_WITH_VOWEL if is_spelled else "aeioAEIO"
    return f"an {noun}" if noun[:1] in vowels or noun == "ndarray" else f"a {noun}"
