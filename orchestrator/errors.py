"""The errors of Hookyard.

HookyardError
├── UsageError          the call is wrong: a name that exists, a flag that does not fit (exit code 2)
│   └── ConfigError     a YAML file or an override is wrong: every problem, with its place (exit code 2)
├── CheckpointError     a checkpoint is missing, incomplete or damaged (exit code 1)
├── StorageError        a storage stays away or refuses (exit code 1; 2 where nothing was started)
│   └── DamagedFile     a file of a run is not as it was written: which, what is wrong, what can be done
└── RunError            a run failed (exit code 1)
    ├── MetricMissing   a trial's reports lack the sweep's metric
    ├── WorkersDisagree the ranks do not run the same plan
    └── LeaseLost       another driver has the run by now
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from types import TracebackType
from typing import ParamSpec, TypeVar

_MOST = 200
"""Problems that one error tells."""
_LONGEST = 2_000
"""Characters of a problem's message, and of its path, file and suggestion."""
_LONGEST_NAME = 100
"""Characters of a name that is compared with those that may have been meant."""

P = ParamSpec("P")
R = TypeVar("R")


class HookyardError(Exception):
    """Anything Hookyard raises on purpose."""


class UsageError(HookyardError):
    """The call is wrong; nothing was started."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a config: where, what, and what to do."""

    path: str
    """Dotted path, such as `hooks.ema.decay`."""
    message: str
    file: str | None = None
    line: int | None = None
    suggestion: str | None = None

    def shortened(self) -> Problem:
        """The problem with no more of each text than can be read."""
        file, suggestion = (shortened(text, _LONGEST) if text else text for text in (self.file, self.suggestion))
        return replace(
            self,
            path=shortened(self.path, _LONGEST),
            message=shortened(self.message, _LONGEST),
            file=file,
            suggestion=suggestion,
        )

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file or ""
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        return f"{text} ({self.suggestion})" if self.suggestion else text


class ConfigError(UsageError):
    """A config is wrong; carries every problem found, and tells the first hundreds."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problem.shortened() for problem in problems)
        rest = [f"and {len(problems) - _MOST:,} more problems"] if len(problems) > _MOST else []
        super().__init__("\n".join([*map(str, self.problems[:_MOST]), *rest]))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def collect_problems(problems: list[Problem], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The function's value, or None once the problems of its ConfigError are noted."""
    try:
        return function(*args, **kwargs)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def shortened(text: str, length: int = 80) -> str:
    """The text, or where it is longer its beginning."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A suggestion of the nearest known name, upper and lower case aside; None when none is near."""
    return _nearest(name, tuple(known)) if len(name) <= _LONGEST_NAME else None


@lru_cache(maxsize=1000)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    names = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), names, n=1)
    return f"did you mean '{names[near[0]]}'?" if near else None


class CheckpointError(HookyardError):
    """A checkpoint is missing, incomplete or damaged."""


class StorageError(HookyardError):
    """A storage stays away, for longer than it is waited for, or refuses."""


class DamagedFile(StorageError):
    """A file of a run is not as it was written."""

    def __init__(self, file: str, what: str, advice: str) -> None:
        super().__init__(f"{file} is damaged: {what}. {advice}")
        self.file, self.what, self.advice = file, what, advice

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str, str]]:
        return type(self), (self.file, self.what, self.advice)


class RunError(HookyardError):
    """A run failed."""


class MetricMissing(RunError):
    """A trial's reports lack the sweep's metric, and so will those of every other."""


class WorkersDisagree(RunError):
    """The ranks do not run the same plan of collective hooks."""


class LeaseLost(RunError):
    """Another driver has the run by now; this one has ended."""


def raised_in_python(traceback: TracebackType | None) -> bool:
    """Whether the innermost frame stood at a `raise`, as against a call into C++."""
    if traceback is None:
        return True
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code.co_code
    return dis.opname[code[traceback.tb_lasti]] == "RAISE_VARARGS"
