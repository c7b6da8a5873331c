"""The errors of Hookyard.

HookyardError
├── UsageError          a wrong call: a name that exists, a flag that does not fit (exit code 2)
│   ├── ConfigError     a wrong YAML file or override: every problem with its line (exit code 2)
│   ├── TaskError       a method of the task returns what the loop cannot use (exit code 2)
│   └── MetricMissing   a trial's reports lack the sweep's metric (exit code 2)
├── CheckpointError     a checkpoint is missing, incomplete or damaged (exit code 1)
├── StorageError        a storage is unreachable (exit code 1; 2 if nothing was started)
│   └── DamagedFile     a damaged file of a run: its name, the damage, and advice
└── RunError            a run failed (exit code 1)
    ├── RankMismatch    the ranks do not run the same plan
    └── LeaseLost       another driver has taken over the run
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from orchestrator.units import format_count

_MAX_PROBLEMS = 200
"""Maximum number of problems that one error prints."""
_MAX_TEXT = 2_000
"""Maximum length of a problem's message, path, file and suggestion, in characters."""

P = ParamSpec("P")
R = TypeVar("R")


class HookyardError(Exception):
    """Base of all errors that Hookyard raises."""


class UsageError(HookyardError):
    """The call, the experiment or the task is wrong."""


UNKNOWN_KEY = "unknown_key"
FOREIGN_KEY = "foreign_key"
"""Code of an unknown key that there is special advice for, such as an option of another system."""
MISSING_KEY = "missing_key"


@dataclass(frozen=True)
class Problem:
    """A problem in a config: path, message, line and suggestion."""

    path: str
    """Dotted path, such as `hooks.ema.decay`."""
    message: str
    file: str | None = None
    line: int | None = None
    suggestion: str | None = None
    code: str = ""
    """Kind of a problem of a single field, the same for all of its wrong values; empty for others."""
    meant: str | None = None
    """Path of the known key that an unknown one was probably meant as."""

    def shorten(self) -> "Problem":
        """Return the problem with long texts truncated."""
        texts: dict[str, Any] = {
            name: shorten(value, _MAX_TEXT)
            for name, value in vars(self).items()
            if isinstance(value, str)
        }
        return replace(self, **texts)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file or ""
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        return f"{text} ({self.suggestion})" if self.suggestion else text


class ConfigError(UsageError):
    """A wrong config, with all its problems; prints the first 200.

    A check of a config yields its problems. A function that makes something of a config cannot, and
    raises this error; so does a check in a worker, which must not go on. `find_problems`,
    `collect_problems` and `raise_problems` turn one into the other.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problem.shorten() for problem in problems)
        lines = [str(problem) for problem in self.problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            lines.append(f"and {format_count(len(problems) - _MAX_PROBLEMS, 'more problem')}")
        super().__init__("\n".join(lines))

    @classmethod
    def at(cls, path: str, message: str, suggestion: str | None = None) -> "ConfigError":
        """Return an error with a single problem.

        Args:
            path: Dotted path of the key.
            message: The problem, without the path.
            suggestion: Advice, such as the nearest valid name.

        Returns:
            The error.
        """
        return cls([Problem(path, message, suggestion=suggestion)])

    def __reduce__(self) -> "tuple[type[ConfigError], tuple[tuple[Problem, ...]]]":
        return type(self), (self.problems,)


class TaskError(UsageError):
    """A method of the task returns what the loop cannot use."""


class MetricMissing(UsageError):
    """A trial's reports lack the sweep's metric, as will those of all trials."""


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise ConfigError with the problems, unless there are none."""
    all_problems = list(problems)
    if all_problems:
        raise ConfigError(all_problems)


def find_problems(
    function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> Iterator[Problem]:
    """Yield the problems of a function's ConfigError; it is called at the first `next`."""
    try:
        function(*args, **kwargs)
    except ConfigError as error:
        yield from error.problems


def collect_problems(
    problems: list[Problem], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R | None:
    """Return the function's value; on a ConfigError, add its problems and return None."""
    try:
        return function(*args, **kwargs)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def shorten(text: str, length: int = 80) -> str:
    """Truncate a text to `length` characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def shorten_value(value: object) -> str:
    """Return the representation of a value, on one line and truncated."""
    return shorten(" ".join(line.strip() for line in repr(value).splitlines()))


class CheckpointError(HookyardError):
    """A checkpoint is missing, incomplete or damaged."""


class StorageError(HookyardError):
    """A storage is unreachable for too long, or refuses access."""


@contextmanager
def errors_before_start() -> Iterator[None]:
    """Convert storage errors to UsageErrors while no run has started yet."""
    try:
        yield
    except StorageError as error:
        raise UsageError(f"{error}. Nothing was started.") from error


MISSING = "it is missing"
"""Damage of a file that does not exist."""


class DamagedFile(StorageError):
    """A file of a run is damaged or missing."""

    status = "damaged"
    """Status of the run in tables."""

    def __init__(self, file: str, what: str, advice: str) -> None:
        state = "missing" if what == MISSING else f"damaged: {what}"
        super().__init__(f"{file} is {state}. {advice}")
        self.file = file
        self.what = what
        self.advice = advice

    def __reduce__(self) -> "tuple[type[DamagedFile], tuple[str, str, str]]":
        return type(self), (self.file, self.what, self.advice)


class NewerFormat(DamagedFile, UsageError):
    """A file of a run was written by a later version of Hookyard, in a format that this version
    does not know."""

    status = "newer"

    def __init__(self, file: str, number: int, known: int) -> None:
        reads = "this version of Hookyard reads"
        HookyardError.__init__(
            self, f"{file} has format {number}, and {reads} formats up to {known}. Upgrade Hookyard"
        )
        self.file = file
        self.what = f"its format is {number}, and {reads} up to {known}"
        self.advice = "Upgrade Hookyard"
        self._numbers = number, known

    # The constructor takes other arguments than that of the base class.
    def __reduce__(self) -> "tuple[type[NewerFormat], tuple[str, int, int]]":  # type: ignore[override]
        return type(self), (self.file, *self._numbers)


class RunError(HookyardError):
    """A run failed."""

    traceback_file: str | None = None
    """Log of the run that has the traceback."""


class RankMismatch(RunError):
    """The ranks do not run the same plan of collective hooks."""


class LeaseLost(RunError):
    """Another driver has taken the run's lease; this one ends."""
