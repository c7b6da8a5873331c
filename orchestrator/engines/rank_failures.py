"""Failures of ranks: what a rank reports, and the failure that caused the others. Does not import
ray."""

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hooks.errors import HookError, SettingError, describe_error, format_error
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.hang_reports import find_hang
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


@dataclass(eq=False, repr=False)
class RankFailed(RunError):
    """A rank failed. Can be pickled, which the rank's own error may not."""

    rank: int
    world_size: int
    message: str
    at: float
    """Unix time of the failure."""
    can_be_secondary: bool
    """True if the rank may have failed only because it lost a peer."""
    is_user_error: bool
    """True if the experiment would fail the same way again."""
    trace: str
    """Traceback; empty if the process died, or if the message is enough."""
    usage_error: UsageError | None
    """Error in the experiment's settings, which is shown without a rank."""

    def __post_init__(self) -> None:
        # Pickle makes the error again from these arguments, which are the fields in their order.
        super().__init__(*vars(self).values())

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.message}" if self.world_size > 1 else self.message

    @classmethod
    def from_error(cls, rank: int, world_size: int, error: BaseException) -> Self:
        """Describe an error that a rank has just caught. A message of a single rank does not name
        it."""
        message = _describe(error)
        usage_error = _find_usage_error(error, message)
        trace = "" if usage_error else format_traceback(error)
        failure = cls(
            rank,
            world_size,
            message=escape_surrogates(message + format_location(error)),
            at=time.time(),
            can_be_secondary=can_be_secondary(error),
            is_user_error=is_user_error(error),
            trace=escape_surrogates(trace),
            usage_error=usage_error,
        )
        run_index = find_failed_run(error)
        if run_index is not None:
            mark_failed_run(failure, run_index)
        return failure

    @classmethod
    def died(cls, rank: int, world_size: int, folder: RunFolder | None = None) -> Self:
        """Describe a rank whose process died; if the run's `folder` records a hang, the message
        says so."""
        hang = find_hang(folder) if folder else None
        message = DIED
        if hang:
            message = f"`hang: {{action: fail}}` ended the process: {hang}"
        return cls(
            rank,
            world_size,
            message=message,
            at=time.time(),
            can_be_secondary=False,
            is_user_error=False,
            trace="",
            usage_error=None,
        )


def _describe(error: BaseException) -> str:
    """Return the message for an error of a rank."""
    if is_gpu_failure(error):
        return _format_gpu_error(error)
    # A StopIteration raised in a generator, such as the loop, arrives as a RuntimeError.
    if isinstance(error.__cause__, StopIteration) and type(error) is RuntimeError:
        return describe_error(error.__cause__)
    if isinstance(error, HookError | HookyardError):
        return format_error(error) or describe_error(error)
    return describe_error(error)


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


def _find_usage_error(error: BaseException, message: str) -> UsageError | None:
    """Return the error in the experiment's settings that an error is, or that a hook found."""
    if isinstance(error, UsageError):
        return error
    if isinstance(error, HookError) and isinstance(error.__cause__, SettingError):
        return UsageError(message)
    return None


def format_traceback(error: BaseException) -> str:
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


def format_failure_line(failure: RankFailed, attempts: Sequence[Attempt]) -> str:
    """Return the log line for the failure of the last attempt."""
    if not attempts:
        return f"Failed before it started: {str(failure).splitlines()[0]}"
    nodes = {host.rank: host.node for host in attempts[-1].hosts}
    node = nodes.get(failure.rank, "no node")
    subject = f"Rank {failure.rank}" if failure.world_size > 1 else "Training"
    return f"{subject} on {node} failed: {failure.message.splitlines()[0]}"
