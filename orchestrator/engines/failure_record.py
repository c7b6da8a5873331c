"""The record of a run's failure in its folder, and the error that its driver raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from hooks.errors import describe_error
from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.error_origin import is_user_error
from orchestrator.engines.rank_failures import RankFailed, escape_surrogates, format_traceback
from orchestrator.errors import HookyardError, MetricMissing, RunError
from orchestrator.process.streams import print_line


@contextmanager
def recording_failure(folder: RunFolder) -> Iterator[None]:
    """Record any error as the run's failure, unless the run is complete, and raise it as a
    HookyardError."""
    try:
        yield
    except BaseException as error:
        raise record_failure(folder, error)  # noqa: B904  # it has its cause


def record_failure(folder: RunFolder, error: BaseException) -> BaseException:
    """Record an error as the run's failure, and log its traceback.

    Returns the error to raise: a KeyboardInterrupt itself, any other as a HookyardError. If the run
    is complete, a KeyboardInterrupt is not recorded.
    """
    is_interrupt = isinstance(error, KeyboardInterrupt)
    if is_interrupt and folder.read_metadata().status in COMPLETE:
        return error

    failure = _to_hookyard_error(error)
    if failure is not error:
        failure.__cause__ = error
    try:
        folder.end(
            "failed",
            error=escape_surrogates(str(failure)),
            is_user_error=is_permanent_error(error),
            metric_missing=isinstance(error, MetricMissing),
        )
        trace = _get_traceback(error)
        if isinstance(failure, RunError) and trace:
            folder.log(trace)
            failure.traceback_file = f"{folder}/log.txt"
    # The first failure is the one to raise.
    except (HookyardError, OSError) as second_error:
        print_line(f"Could not record the failure of {folder}: {second_error}")
    return error if is_interrupt else failure


def is_permanent_error(error: BaseException) -> bool:
    """Return whether a retry would fail the same way: from a RankFailed itself, otherwise by
    `is_user_error`."""
    if isinstance(error, RankFailed):
        return error.is_user_error
    return isinstance(error, Exception) and is_user_error(error)


def _to_hookyard_error(error: BaseException) -> HookyardError:
    """Return the error to raise for a failure: a HookyardError unchanged, any other as a
    RunError."""
    if isinstance(error, RankFailed) and error.usage_error:
        return error.usage_error
    return error if isinstance(error, HookyardError) else RunError(describe_error(error))


def _get_traceback(error: BaseException) -> str:
    """Return the traceback of a failure; empty if the error's message is enough."""
    if isinstance(error, RankFailed):
        return error.trace
    if isinstance(error, HookyardError) or not isinstance(error, Exception):
        return ""
    return format_traceback(error)
