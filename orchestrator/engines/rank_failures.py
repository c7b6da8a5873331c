"""Failures of ranks: find the first one, and decide whether a retry would fail the same way. Does
not import ray."""

import os
import sysconfig
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hooks
from hooks.errors import HookError, SettingError, describe_error, error_text
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang import find_hang
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import HookyardError, RunError, UsageError, raised_in_python

USER_ERRORS = (
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
"""Errors that user code would raise again."""

_LIBRARY_PREFIXES = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{folder}{os.sep}" for folder in (*hooks.__path__, Path(__file__).parents[1])),
    "<",
)
"""Prefixes of paths that are not user code: libraries, this project, and code without a file."""

_TASK = str(Path(__file__).parents[1] / "task.py")
"""File with the methods that tasks inherit."""

_DEVICE_ASSERT = "device-side assert"
"""Text of a GPU error that user code caused, and would cause again."""

_MAX_TRACE = 200_000
"""Maximum length of a traceback in characters."""

DIED = (
    "the process died without an error message: it was killed, ran out of memory, crashed outside"
    " Python, or its node failed"
)


def is_user_error(error: BaseException) -> bool:
    """Return whether user code, rather than a lost peer, a device or a disk, caused a failure.

    True for the classes in USER_ERRORS, and for other errors whose traceback contains user code. A
    RuntimeError or MemoryError counts only if user code raised it directly: PyTorch raises both for
    device failures.
    """
    if may_be_secondary(error):
        return False
    if is_gpu_failure(error):
        return _DEVICE_ASSERT in str(_root_cause(error))
    cause = error.__cause__ if isinstance(error, HookError) else error
    if isinstance(cause, USER_ERRORS):
        return True
    root = _root_cause(error)
    if not isinstance(cause, RuntimeError | MemoryError):
        return _passed_through_user_code(root)
    frames = _frames(root)
    is_own_line = bool(frames) and is_user_file(frames[-1].filename)
    return is_own_line and raised_in_python(root.__traceback__)


def may_be_secondary(error: BaseException) -> bool:
    """Return whether a rank may have failed only because it lost a peer. Call it before pickling
    drops the traceback.

    True for torch.distributed's errors, and for a RuntimeError raised in C++, such as gloo's;
    others are its own.
    """
    import torch.distributed as dist

    first = _root_cause(error)
    return isinstance(first, dist.DistError) or (
        type(first) is RuntimeError and not raised_in_python(first.__traceback__)
    )


def is_gpu_failure(error: BaseException) -> bool:
    """Return whether the GPU raised an error, after which the process cannot use it any more."""
    import torch

    return isinstance(_root_cause(error), torch.AcceleratorError)


def get_traceback(error: BaseException) -> str:
    """Return the traceback of a failure; empty if the error's message is enough."""
    if isinstance(error, RankFailed):
        return error.trace
    if isinstance(error, HookyardError) or not isinstance(error, Exception):
        return ""
    return _format_traceback(error)


def _format_traceback(error: BaseException) -> str:
    """Return a traceback, without its middle if it is very long."""
    trace = "".join(traceback.format_exception(error))
    if len(trace) <= _MAX_TRACE:
        return trace
    half = _MAX_TRACE // 2
    return (
        f"{trace[:half]}\n... (middle omitted; {len(trace):,} characters in all)\n{trace[-half:]}"
    )


def escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _format_location(error: BaseException) -> str:
    """Return the innermost line of user code as ` (file:line, in function)`, or an empty string."""
    frames = _frames(_root_cause(error))
    own = [frame for frame in frames if is_user_file(frame.filename)]
    if own:
        return f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})"
    # If all modules are torch's, no frame is user code.
    inherited = [frame.name for frame in frames if frame.filename == _TASK]
    return f" (in {inherited[-1]}() of the task)" if inherited else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def is_user_file(file: str) -> bool:
    """Return whether a file belongs to user code."""
    return not file.startswith(_LIBRARY_PREFIXES)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its cause or context, and so on."""
    current: BaseException | None = error
    while current:
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _root_cause(error: BaseException) -> BaseException:
    return list(_chain(error))[-1]


def find_root_cause_in_user_code(error: BaseException) -> BaseException:
    """Return the innermost error of a chain that passed through user code, or the root cause if
    none did."""
    chain = list(_chain(error))
    in_user_code = [link for link in chain if _passed_through_user_code(link)]
    return (in_user_code or chain)[-1]


def _passed_through_user_code(error: BaseException) -> bool:
    return any(is_user_file(frame.filename) for frame in _frames(error))


def count_frames_below_user_code(error: BaseException) -> int:
    """Return the number of frames between user code and the line that raised; 0 if no frame is user
    code."""
    frames = enumerate(reversed(_frames(error)))
    return next((depth for depth, frame in frames if is_user_file(frame.filename)), 0)


def _format_gpu_error(error: BaseException) -> str:
    """Return the message for a GPU failure, which surfaces wherever the CPU next synchronizes with
    the GPU."""
    place = ""
    if isinstance(error, HookError):
        place = (
            f" It surfaced in hook '{error.hook}' ({error.event}), but may have happened earlier."
        )
    advice = " Usually a label or a token ID is out of range." if is_user_error(error) else ""
    message = str(_root_cause(error)).partition("\n")[0]
    return (
        f"the GPU failed: {message}.{place}{advice} To find the line, set the environment variable"
        " CUDA_LAUNCH_BLOCKING=1, or run on the CPU with workers.gpu=false"
    )


class RankFailed(RunError):
    """Picklable description of a rank's failure."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        message: str,
        at: float,
        may_be_secondary: bool,
        is_user_error: bool,
        trace: str = "",
    ) -> None:
        super().__init__(f"rank {rank}: {message}" if world_size > 1 else message)
        self.rank = rank
        self.world_size = world_size
        self.message = message
        self.at = at
        """Unix time of the failure."""
        self.may_be_secondary = may_be_secondary
        self.is_user_error = is_user_error
        """True if the experiment would fail the same way again."""
        self.trace = trace
        self.usage_error: UsageError | None = None
        """Error in the experiment's settings, which is shown without a rank."""

    def __reduce__(
        self,
    ) -> "tuple[type[RankFailed], tuple[int, int, str, float, bool, bool, str], dict[str, Any]]":
        arguments = (
            self.rank,
            self.world_size,
            self.message,
            self.at,
            self.may_be_secondary,
            self.is_user_error,
            self.trace,
        )
        return type(self), arguments, vars(self)

    @classmethod
    def from_error(cls, rank: int, world_size: int, error: BaseException) -> "RankFailed":
        """Describe an error that a rank has just caught. A message of a single rank does not name
        it."""
        # A StopIteration raised in a generator, such as the loop, arrives as a RuntimeError.
        cause = error
        if isinstance(error.__cause__, StopIteration) and type(error) is RuntimeError:
            cause = error.__cause__
        message = describe_error(cause)
        if isinstance(cause, HookError | HookyardError):
            message = error_text(cause) or message
        if is_gpu_failure(error):
            message = _format_gpu_error(error)
        failure = cls(
            rank,
            world_size,
            escape_surrogates(message + _format_location(error)),
            time.time(),
            may_be_secondary(error),
            is_user_error(error),
            escape_surrogates(_format_traceback(error)),
        )
        for note in getattr(error, "__notes__", ()):
            failure.add_note(note)
        if isinstance(error, HookError) and isinstance(error.__cause__, SettingError):
            error = UsageError(message)
        if isinstance(error, UsageError):
            failure.usage_error = error
            failure.trace = ""
        return failure

    @classmethod
    def died(cls, rank: int, world_size: int, folder: RunFolder | None = None) -> "RankFailed":
        """Describe a rank whose process died; if the run's `folder` records a hang, the message
        says so."""
        hang = find_hang(folder) if folder else None
        message = DIED
        if hang:
            message = f"`hang: {{action: fail}}` ended the process: {hang}"
        return cls(rank, world_size, message, time.time(), False, False)


def would_fail_again(error: BaseException) -> bool:
    """Return whether a retry would fail the same way: from a RankFailed itself, otherwise by
    `is_user_error`."""
    if isinstance(error, RankFailed):
        return error.is_user_error
    return isinstance(error, Exception) and is_user_error(error)


def find_root_failure(failures: Mapping[int, RankFailed]) -> RankFailed:
    """Return the failure that caused the others.

    A rank's own error comes first, then a process that died: another rank's own error may have
    killed it, but a secondary one cannot have. The earliest wins a tie. A failing rank keeps its
    connections open until it has reported, so secondary errors come later by more than the clock
    skew.
    """
    return min(
        failures.values(),
        key=lambda failure: (
            failure.may_be_secondary,
            failure.message == DIED,
            failure.at,
            failure.rank,
        ),
    )


def to_hookyard_error(error: BaseException) -> HookyardError:
    """Return the error to raise for a failure: a HookyardError unchanged, any other as a
    RunError."""
    if isinstance(error, RankFailed) and error.usage_error:
        return error.usage_error
    return error if isinstance(error, HookyardError) else RunError(describe_error(error))


def format_failure_line(failure: RankFailed, attempts: Sequence[Attempt]) -> str:
    """Return the log line for the failure of the last attempt."""
    if not attempts:
        return f"Failed before it started: {str(failure).splitlines()[0]}"
    nodes = {host.rank: host.node for host in attempts[-1].hosts}
    node = nodes.get(failure.rank, "no node")
    subject = f"Rank {failure.rank}" if failure.world_size > 1 else "Training"
    return f"{subject} on {node} failed: {failure.message.splitlines()[0]}"
