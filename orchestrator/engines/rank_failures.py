"""Which rank's failure is to be told, where the others' are only its echo. Runs in the worker that failed, and in
whoever gathers what the ranks have said; imports no ray."""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from collections.abc import Mapping, Sequence
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
"""What an experiment's own code raises, and would raise again."""

_NOT_THE_EXPERIMENT = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{folder}{os.sep}" for folder in (*hooks.__path__, Path(__file__).parents[1])),
    "<",
)
"""Where a failure's own place is not to be looked for: libraries, the project itself, and what has no file."""

_KERNELS_OWN = "device-side assert"
"""In the words of a GPU's failure that the code on it has asked for, and would again."""

_LONGEST_TRACE = 200_000
"""Characters of a traceback that are kept."""

DIED = "died without a word: it was killed, ran out of memory, crashed outside Python, or lost its machine"


def would_come_again(error: BaseException) -> bool:
    """Whether a failure is a mistake in the experiment, as against a lost peer, a device or a disk: by its class, or as
    it came out of the experiment's own code, where a missing file is one too. A RuntimeError or a MemoryError there may
    be a device's, unless that code has raised it itself."""
    if may_be_echo(error):
        return False
    if lost_gpu(error):
        return _KERNELS_OWN in str(_first(error))
    raised = error.__cause__ if isinstance(error, HookError) else error
    if isinstance(raised, MISTAKES):
        return True
    frames = _frames(error)
    if not isinstance(raised, RuntimeError | MemoryError):
        return any(map(_is_own, frames))
    return bool(frames) and _is_own(frames[-1]) and raised_in_python(_first(error).__traceback__)


def may_be_echo(error: BaseException) -> bool:
    """Whether a rank may have failed only because it lost a peer; ask where it was raised, as a copy has no traceback.

    So it is with torch's own errors of this kind, and with a RuntimeError that came out of C++, as gloo's does from a
    collective, a wait for one or a backward pass. Whatever Python code has raised itself is a rank's own, and so is
    every other type. What is raised while an error is handled counts as that error.
    """
    import torch.distributed as dist

    first = _first(error)
    return isinstance(first, dist.DistError) or (
        type(first) is RuntimeError and not raised_in_python(first.__traceback__)
    )


def lost_gpu(error: BaseException) -> bool:
    """Whether the GPU itself failed, after which its process can use it no more."""
    import torch

    return isinstance(_first(error), torch.AcceleratorError)


def traceback_of(error: BaseException) -> str:
    """The traceback that is worth keeping of a failure; empty where its words say all."""
    if isinstance(error, RankFailed):
        return error.trace
    said_on_purpose = isinstance(error, HookyardError) or not isinstance(error, Exception)
    return "" if said_on_purpose else _in_bounds("".join(traceback.format_exception(error)))


def keep_traceback(folder: RunFolder, error: BaseException) -> None:
    """Puts the traceback of a failure into the run's log, where there is one, and says so. Driver."""
    trace = traceback_of(error)
    if trace:
        folder.log(trace)
        folder.storage.join("log.txt")
        say(f"The traceback is in {folder}/log.txt")


def _in_bounds(trace: str) -> str:
    """The beginning and the end of a traceback that is longer than anybody reads."""
    half = _LONGEST_TRACE // 2
    return (
        trace if len(trace) <= _LONGEST_TRACE else f"{trace[:half]}\n... ({len(trace):,} characters)\n{trace[-half:]}"
    )


def encodable(text: str) -> str:
    """A text with an escape for each half of a surrogate pair, which no file and no terminal takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _location(error: BaseException) -> str:
    """Where in the experiment's own code a failure began, as ` (file:line, in function)`; empty where it was
    elsewhere."""
    own = [frame for frame in _frames(error) if _is_own(frame)]
    return f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(_first(error).__traceback__))


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is of the experiment's own code."""
    return is_own_file(frame.filename)


def is_own_file(file: str) -> bool:
    """Whether a file is of the experiment's own code."""
    return not file.startswith(_NOT_THE_EXPERIMENT)


def _first(error: BaseException) -> BaseException:
    """The error that others were raised for or after."""
    while before := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = before
    return error


def first_of_the_experiment(error: BaseException) -> BaseException:
    """Of an error and those that it was raised for or after, the earliest that came through the experiment's own code;
    the earliest of all where none did."""
    chain = [error]
    while before := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
        chain.append(before)
    through = [one for one in chain if any(map(_is_own, traceback.extract_tb(one.__traceback__)))]
    return (through or chain)[-1]


def frames_behind_experiment(error: BaseException) -> int:
    """How many frames lie between where an error was raised and the experiment's own code; 0 where none is its own."""
    frames = list(traceback.extract_tb(error.__traceback__))
    return next((depth for depth, frame in enumerate(reversed(frames)) if _is_own(frame)), 0)


def _of_the_gpu(error: BaseException) -> str:
    """What is told of a GPU's failure, which whoever waited for it next has met: a hook, a metric, a copy."""
    met = (
        f" Noticed by hook '{error.hook}' in {error.event}, which need not be where it happened."
        if isinstance(error, HookError)
        else ""
    )
    advice = " An index is out of its range, most often: a label, or a token." if would_come_again(error) else ""
    words = str(_first(error)).partition("\n")[0]
    return (
        f"the GPU failed: {words}.{met}{advice} CUDA_LAUNCH_BLOCKING=1 in the environment, or workers.gpu=false, shows"
        " the line"
    )


class RankFailed(RunError):
    """What one rank says of its failure; travels between processes."""

    def __init__(self, rank: int, words: str, at: float, may_be_echo: bool, mistake: bool, trace: str = "") -> None:
        super().__init__(f"rank {rank}: {words}")
        self.rank, self.words = rank, words
        self.at = at
        """When it failed, in seconds since 1970."""
        self.may_be_echo = may_be_echo
        self.mistake = mistake
        """Whether the experiment would fail the same way again."""
        self.trace = trace
        """The traceback, where there is one."""
        self.usage: UsageError | None = None
        """What it says is wrong with the experiment's settings, where it says that: no rank's own, and so told without
        one."""

    def __reduce__(self) -> tuple[type[RankFailed], tuple[int, str, float, bool, bool, str], dict[str, Any]]:
        return type(self), (self.rank, self.words, self.at, self.may_be_echo, self.mistake, self.trace), vars(self)

    @classmethod
    def from_error(cls, rank: int, error: BaseException) -> RankFailed:
        """A rank's account of the error it has just caught."""
        # Python says no more of a StopIteration that was raised in a generator, such as the loop.
        told = error.__cause__ if isinstance(error.__cause__, StopIteration) and type(error) is RuntimeError else error
        words = (isinstance(told, HookError | HookyardError) and error_text(told)) or describe_error(told)
        if lost_gpu(error):
            words = _of_the_gpu(error)
        trace = encodable(_in_bounds("".join(traceback.format_exception(error))))
        failure = cls(
            rank, encodable(words + _location(error)), time.time(), may_be_echo(error), would_come_again(error), trace
        )
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        if isinstance(error, UsageError):
            failure.usage, failure.trace = error, ""
        return failure

    @classmethod
    def died(cls, rank: int, folder: RunFolder | None = None) -> RankFailed:
        """For a rank whose process is gone, and has said nothing; in the run's `folder` may stand why it was ended."""
        found = find_hang(folder) if folder else None
        return cls(rank, f"was ended, as hang.action says: {found}" if found else DIED, time.time(), False, False)


def is_mistake(error: BaseException) -> bool:
    """Whether whatever failed would fail the same way again, as a rank has said or as `would_come_again` tells."""
    return error.mistake if isinstance(error, RankFailed) else isinstance(error, Exception) and would_come_again(error)


def culprit(failures: Mapping[int, RankFailed]) -> RankFailed:
    """The failure that the others followed from.

    A failure of a rank's own comes first: an echo would have been another error. Then a rank that is gone; it may have
    been torn down for another's failure, but not for an echo. Of several alike the earliest. A rank that fails keeps
    its connections until it has told, so that an echo is later by more than clocks differ.
    """
    return min(
        failures.values(), key=lambda failure: (failure.may_be_echo, failure.words == DIED, failure.at, failure.rank)
    )


def told_as(error: BaseException) -> HookyardError:
    """What is raised for a failure, wherever the rank ran whose it was: an error of ours as it is, any other as a
    RunError."""
    if isinstance(error, RankFailed) and error.usage:
        return error.usage
    return error if isinstance(error, HookyardError) else RunError(describe_error(error))


def loss_line(failure: RankFailed, attempts: Sequence[Attempt]) -> str:
    """The line that tells of an attempt that was lost, the last one made: with which rank, and where it was."""
    words = failure.words.splitlines()[0]
    if not attempts:
        return f"lost before it began: rank {failure.rank}: {words}"
    places = {host.rank: host.node for host in attempts[-1].hosts}
    return f"attempt {attempts[-1].number} lost: rank {failure.rank} on {places.get(failure.rank, 'no node')}: {words}"
