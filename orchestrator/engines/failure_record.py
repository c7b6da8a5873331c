"""The record of a run's failure in its folder, and the error that its driver raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from hooks.errors import describe_error
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import error_origin
from orchestrator.engines.rank_failures import RankFailed, escape_surrogates, format_traceback
from orchestrator.errors import HookyardError, MetricMissing, RunError
from orchestrator.process.streams import print_line


@contextmanager
def recording_failure(folder: RunFolder) -> Iterator[None]:
    """Record any error as the run's failure, and raise it as a HookyardError.

    A KeyboardInterrupt stays one. It is no failure of a run that is complete.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        with _printing_error(folder):
            if not folder.read_metadata().is_complete:
                record_failure(folder, interrupt)
        raise
    except BaseException as error:
        failure = record_failure(folder, error)
        if failure is error:
            raise
        raise failure from error


def record_failure(folder: RunFolder, error: BaseException) -> HookyardError:
    """Record an error as the run's failure, and log its traceback; return the HookyardError to raise
    for it. Prints the error if that fails."""
    failure = _to_hookyard_error(error)
    with _printing_error(folder):
        folder.run_file.end(
            "failed",
            error=escape_surrogates(str(failure)),
            is_user_error=is_user_error(error),
            metric_missing=isinstance(error, MetricMissing),
        )
        trace = _get_traceback(error)
        if isinstance(failure, RunError) and trace:
            folder.log(trace)
            failure.traceback_file = f"{folder}/log.txt"
    return failure


@contextmanager
def _printing_error(folder: RunFolder) -> Iterator[None]:
    """Print an error of the record, because the failure itself is the one to raise."""
    try:
        yield
    except (HookyardError, OSError) as error:
        print_line(f"Could not record the failure of {folder}: {error}")


def is_user_error(error: BaseException) -> bool:
    """Return whether a retry would fail the same way. The error of a rank's process says it, because
    it has lost the traceback that shows it."""
    if isinstance(error, RankFailed):
        return error.is_user_error
    return isinstance(error, Exception) and error_origin.is_user_error(error)


def _to_hookyard_error(error: BaseException) -> HookyardError:
    """Return the error to raise for a failure: a HookyardError itself, and any other as a RunError
    with that cause. An error in the experiment's settings is raised without the rank that found it.
    """
    if isinstance(error, RankFailed) and error.usage_error:
        failure: HookyardError = error.usage_error
    elif isinstance(error, HookyardError):
        return error
    else:
        failure = RunError(describe_error(error))
    failure.__cause__ = error
    return failure


def _get_traceback(error: BaseException) -> str:
    """Return the traceback of a failure; empty if the error's message is enough."""
    if isinstance(error, RankFailed):
        return error.trace
    if isinstance(error, HookyardError) or not isinstance(error, Exception):
        return ""
    return format_traceback(error)
