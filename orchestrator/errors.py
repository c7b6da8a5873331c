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

import dis
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from orchestrator.units import format_count

_MAX_PROBLEMS = 200
"""Maximum number of problems that one error prints."""
_MAX_TEXT = 2_000
"""Maximum length of a problem's message, path, file and suggestion, in characters."""
_MAX_NAME = 100
"""Length above which a name gets no suggestion."""

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
    found = list(problems)
    if found:
        raise ConfigError(found)


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


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Suggest the nearest known name, ignoring case; None if none is near."""
    nearest = find_nearest(name, known)
    return f"did you mean '{nearest}'?" if nearest else None


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest known name, ignoring case; None if none is near."""
    return _find_nearest(name, tuple(known)) if len(name) <= _MAX_NAME else None


@lru_cache(maxsize=1000)
def _find_nearest(name: str, known: tuple[str, ...]) -> str | None:
    names = {candidate.lower(): candidate for candidate in known}
    near = _list_near(name.lower(), names)
    return names[near[0]] if near else None


def _list_near(name: str, names: Collection[str]) -> list[str]:
    """Return the names that may be meant, the nearest first; all are in lower case."""
    matches = get_close_matches(name, names, cutoff=0.75)
    near = [match for match in matches if _can_be_meant(name, match)]
    if near:
        return near

    # `cosine` means CosineAnnealingLR, although they have few letters in common.
    if len(name) > 2:
        near = sorted((candidate for candidate in names if name in candidate), key=len)
        if near:
            return near

    # `rl` and `learning_rate` mean `lr`.
    letters = sorted(name)
    initials = "".join(word[:1] for word in name.split("_"))
    for candidate in names:
        if candidate == initials or sorted(candidate) == letters:
            return [candidate]

    # One wrong letter is a large part of a short name.
    return get_close_matches(name, names, n=1) if len(name) <= 5 else []


def _can_be_meant(name: str, candidate: str) -> bool:
    """Return whether no word of the name has another word in its place: `save_best` does not mean
    `save_last`."""
    fewer, more = sorted((name.split("_"), candidate.split("_")), key=len)

    def has_counterpart(word: str) -> bool:
        return any(_are_near(word, other) for other in more)

    return all(has_counterpart(word) for word in fewer)


def _are_near(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    if len(short) < 3 or long.startswith(short):
        return True
    return SequenceMatcher(None, word, other).ratio() >= 0.6


class CheckpointError(HookyardError):
    """A checkpoint is missing, incomplete or damaged."""


class StorageError(HookyardError):
    """A storage is unreachable for too long, or refuses access."""


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


def raised_in_python(traceback: TracebackType | None) -> bool:
    """Return whether the innermost frame was at a `raise`, not in a call into C++."""
    if traceback is None:
        return True
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code.co_code
    return dis.opname[code[traceback.tb_lasti]] == "RAISE_VARARGS"
