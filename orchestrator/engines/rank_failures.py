"""Failures of ranks: which one came first, and whether it would happen again. Imports no ray."""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hooks
from hooks.error_text import describe_error, error_text
from hooks.plan import HookError
from orchestrator.errors import HookyardError, RunError, UsageError, raised_in_python
from orchestrator.records.hang import find_hang
from orchestrator.records.metadata import Attempt
from orchestrator.records.run_folder import RunFolder
from orchestrator.terminal.display import say

MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    HookyardError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""Errors that an experiment's own code would raise again."""

_FOREIGN_CODE = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{folder}{os.sep}" for folder in (*hooks.__path__, Path(__file__).parents[1])),
    "<",
)
"""Where files are not the experiment's own: libraries, this project, and code without a file."""

_DEVICE_ASSERT = "device-side assert"
"""In a GPU's failure that the code itself caused, and would cause again."""

_MAX_TRACE = 200_000
"""Characters that are kept of a traceback."""

DIED = "died without an error message: it was killed, ran out of memory, crashed outside Python, or lost its machine"


def is_repeatable(error: BaseException) -> bool:
    """Return whether a failure is a mistake in the experiment, not a lost peer, a device or a disk.

    It is if its class says so, or if the experiment's own code raised it. A RuntimeError or MemoryError out of that
    code may be a device's, unless the code raised it itself.
    """
    if is_possible_echo(error):
        return False
    if lost_gpu(error):
        return _DEVICE_ASSERT in str(_first(error))
    raised = error.__cause__ if isinstance(error, HookError) else error
    if isinstance(raised, MISTAKES):
        return True
    frames = _frames(error)
    if not isinstance(raised, RuntimeError | MemoryError):
        return any(map(_is_own, frames))
    return bool(frames) and _is_own(frames[-1]) and raised_in_python(_first(error).__traceback__)


def is_possible_echo(error: BaseException) -> bool:
    """Return whether a rank may have failed only because it lost a peer. A copy of an error has no traceback to tell.

    That holds for torch.distributed's errors, and for a RuntimeError out of C++, such as gloo's. What Python code
    raises is a rank's own, and so is any other type.
    """
    import torch.distributed as dist

    first = _first(error)
    return isinstance(first, dist.DistError) or (
        type(first) is RuntimeError and not raised_in_python(first.__traceback__)
    )


def lost_gpu(error: BaseException) -> bool:
    """Return whether the GPU itself failed, after which the process cannot use it any more."""
    import torch

    return isinstance(_first(error), torch.AcceleratorError)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of a failure; empty if the error's message says it all."""
    if isinstance(error, RankFailed):
        return error.trace
    return "" if isinstance(error, HookyardError) or not isinstance(error, Exception) else _trace(error)


def keep_traceback(folder: RunFolder, error: BaseException) -> None:
    """Write the traceback of a failure into the run's log. Driver."""
    if trace := traceback_of(error):
        folder.log(trace)
        say(f"The traceback is in {folder}/log.txt")


def _trace(error: BaseException) -> str:
    """Return a traceback, without its middle if it is very long."""
    trace, half = "".join(traceback.format_exception(error)), _MAX_TRACE // 2
    if len(trace) <= _MAX_TRACE:
        return trace
    return f"{trace[:half]}\n... ({len(trace):,} characters)\n{trace[-half:]}"


def encodable(text: str) -> str:
    """Return a text with an escape for each half of a surrogate pair, which files and terminals refuse."""
    return text.encode("utf-8", "backslashreplace").decode()


def _location(error: BaseException) -> str:
    """Return the innermost line of the experiment's own code, as ` (file:line, in function)`, if there is one."""
    frames = [frame for frame in _frames(error) if _is_own(frame)]
    return f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(_first(error).__traceback__))


def _is_own(frame: traceback.FrameSummary) -> bool:
    return is_own_file(frame.filename)


def is_own_file(file: str) -> bool:
    """Return whether a file is of the experiment's own code."""
    return not file.startswith(_FOREIGN_CODE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return an error, the one it was raised for or after, and so on."""
    current: BaseException | None = error
    while current:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _first(error: BaseException) -> BaseException:
    return list(_chain(error))[-1]


def first_of_the_experiment(error: BaseException) -> BaseException:
    """Return the earliest error of a chain that came through the experiment's own code, else the earliest of all."""
    chain = list(_chain(error))
    candidates = [link for link in chain if any(map(_is_own, traceback.extract_tb(link.__traceback__)))]
    return (candidates or chain)[-1]


def frames_behind_experiment(error: BaseException) -> int:
    """Return how many frames lie between where an error was raised and the experiment's own code; 0 without any."""
    frames = list(traceback.extract_tb(error.__traceback__))
    return next((depth for depth, frame in enumerate(reversed(frames)) if _is_own(frame)), 0)


def _gpu_error_text(error: BaseException) -> str:
    """Return the message of a GPU's failure, which surfaces wherever the CPU next waits for the GPU."""
    place = (
        f" Noticed by hook '{error.hook}' in {error.event}, which need not be where it happened."
        if isinstance(error, HookError)
        else ""
    )
    advice = " An index is out of its range, most often: a label, or a token." if is_repeatable(error) else ""
    words = str(_first(error)).partition("\n")[0]
    return (
        f"the GPU failed: {words}.{place}{advice} To find the line, set CUDA_LAUNCH_BLOCKING=1 in the environment, or"
        " workers.gpu=false"
    )


class RankFailed(RunError):
    """A rank's account of its failure; travels between processes."""

    def __init__(
        self, rank: int, words: str, at: float, is_possible_echo: bool, mistake: bool, trace: str = ""
    ) -> None:
        super().__init__(f"rank {rank}: {words}")
        self.rank, self.words = rank, words
        self.at = at
        """Time of the failure, in seconds since 1970."""
        self.is_possible_echo = is_possible_echo
        self.mistake = mistake
        """True if the experiment would fail the same way again."""
        self.trace = trace
        self.usage: UsageError | None = None
        """An error in the experiment's settings, which is shown without a rank."""

    def __reduce__(self) -> tuple[type[RankFailed], tuple[int, str, float, bool, bool, str], dict[str, Any]]:
        return type(self), (self.rank, self.words, self.at, self.is_possible_echo, self.mistake, self.trace), vars(self)

    @classmethod
    def from_error(cls, rank: int, error: BaseException) -> RankFailed:
        """Describe an error that a rank has just caught."""
        # A StopIteration raised in a generator, such as the loop, arrives as a RuntimeError.
        cause = error.__cause__ if isinstance(error.__cause__, StopIteration) and type(error) is RuntimeError else error
        words = (isinstance(cause, HookError | HookyardError) and error_text(cause)) or describe_error(cause)
        if lost_gpu(error):
            words = _gpu_error_text(error)
        failure = cls(
            rank,
            encodable(words + _location(error)),
            time.time(),
            is_possible_echo(error),
            is_repeatable(error),
            encodable(_trace(error)),
        )
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        if isinstance(error, UsageError):
            failure.usage, failure.trace = error, ""
        return failure

    @classmethod
    def died(cls, rank: int, folder: RunFolder | None = None) -> RankFailed:
        """Describe a rank whose process is gone. The run's `folder` may tell that a hang ended it."""
        hang = find_hang(folder) if folder else None
        return cls(rank, f"was ended by hang.action: {hang}" if hang else DIED, time.time(), False, False)


def is_mistake(error: BaseException) -> bool:
    """Return whether a failure would happen again, as a rank has told or as `is_repeatable` tells."""
    return error.mistake if isinstance(error, RankFailed) else isinstance(error, Exception) and is_repeatable(error)


def culprit(failures: Mapping[int, RankFailed]) -> RankFailed:
    """Return the failure that the others followed from.

    A rank's own error comes first, as an echo would have been another error. Then a rank that is gone: it may have been
    ended for another's failure, but not for an echo. Among equals the earliest: a rank that fails keeps its connections
    until it has told, so an echo is later by more than clocks differ.
    """
    return min(
        failures.values(),
        key=lambda failure: (failure.is_possible_echo, failure.words == DIED, failure.at, failure.rank),
    )


def as_own_error(error: BaseException) -> HookyardError:
    """Return the error to raise for a failure: one of ours unchanged, any other as a RunError."""
    if isinstance(error, RankFailed) and error.usage:
        return error.usage
    return error if isinstance(error, HookyardError) else RunError(describe_error(error))


def loss_line(failure: RankFailed, attempts: Sequence[Attempt]) -> str:
    """Return the line that reports the loss of the last attempt."""
    words = failure.words.splitlines()[0]
    if not attempts:
        return f"lost before it began: rank {failure.rank}: {words}"
    nodes = {host.rank: host.node for host in attempts[-1].hosts}
    return f"attempt {attempts[-1].number} lost: rank {failure.rank} on {nodes.get(failure.rank, 'no node')}: {words}"
