"""Failures of ranks: what a rank reports, and the failure that caused the others. Does not import
ray."""

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from hooks.errors import HookError, SettingError, describe_error, format_error
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang import find_hang
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.error_origin import (
    can_be_secondary,
    find_root_cause,
    format_location,
    is_gpu_failure,
    is_user_error,
)
from orchestrator.errors import HookyardError, RunError, UsageError
from orchestrator.loop.sharing.failed_run import find_failed_run, mark_failed_run

_MAX_TRACE = 200_000
"""Maximum length of a traceback in characters."""

DIED = (
    "the process died without an error message: it was killed, ran out of memory, crashed outside"
    " Python, or its node failed"
)


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


def _format_gpu_error(error: BaseException) -> str:
    """Return the message for a GPU failure, which surfaces wherever the CPU next synchronizes with
    the GPU."""
    place = ""
    if isinstance(error, HookError):
        place = (
            f" It surfaced in hook '{error.hook}' ({error.event}), but may have happened earlier."
        )
    advice = " Usually a label or a token ID is out of range." if is_user_error(error) else ""
    message = str(find_root_cause(error)).partition("\n")[0]
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
        can_be_secondary: bool,
        is_user_error: bool,
        trace: str = "",
    ) -> None:
        super().__init__(f"rank {rank}: {message}" if world_size > 1 else message)
        self.rank = rank
        self.world_size = world_size
        self.message = message
        self.at = at
        """Unix time of the failure."""
        self.can_be_secondary = can_be_secondary
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
            self.can_be_secondary,
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
            message = format_error(cause) or message
        if is_gpu_failure(error):
            message = _format_gpu_error(error)
        failure = cls(
            rank,
            world_size,
            escape_surrogates(message + format_location(error)),
            time.time(),
            can_be_secondary(error),
            is_user_error(error),
            escape_surrogates(_format_traceback(error)),
        )
        mark_failed_run(failure, find_failed_run(error))
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


def is_permanent_error(error: BaseException) -> bool:
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
            failure.can_be_secondary,
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
