"""Checks of what the task's methods return; errors name the line in the task's file. Runs in
workers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from hooks.errors import add_article
from hooks.hook import Hook, find_hook_with_metric
from hooks.metrics.names import REPORT_ENTRIES
from orchestrator.column_names import TIMES
from orchestrator.disk.rows.columns import COUNTER_TYPES, NAME_COLUMNS
from orchestrator.errors import TaskError
from orchestrator.user_code.failures import find_source_location

R = TypeVar("R")

COLUMNS = (*COUNTER_TYPES, *NAME_COLUMNS, "superseded", *TIMES)
"""Columns that every row has, some of them only in a sweep's table or in the files."""
ROW_COLUMNS = frozenset({"loss", "lr", "microbatches", "evaluations", *COLUMNS})
"""Columns that the loop may record; hooks and loss terms cannot use these names."""


def require_type(method: Callable[..., Any], value: R, kind: type[Any], expected: str) -> R:
    """Return the result of a task's method; raises TaskError if its type is not `kind`."""
    if isinstance(value, kind):
        return value
    raise make_return_error(method, "", value, expected)


def require_loss_terms(method: Callable[..., Any], loss: Any) -> Mapping[str, Tensor]:
    """Return the terms of a loss that is not a scalar; raises TaskError if it is not a mapping of
    scalars."""
    scalar = "a scalar tensor, such as the mean over the batch"
    if not isinstance(loss, Mapping) or not loss:
        raise make_return_error(
            method, "", loss, f"{scalar}, or a mapping of names to scalar tensors"
        )
    for name, term in loss.items():
        if not isinstance(term, Tensor) or term.ndim:
            raise make_return_error(method, f" for its term '{name}'", term, scalar)
        if not isinstance(name, str) or not name or name in ROW_COLUMNS:
            is_taken = name in ROW_COLUMNS
            reason = "every row has a column of this name" if is_taken else "expected text"
            where = find_source_location(method)
            raise TaskError(f"{method.__name__}() names a term {name!r}: {reason}{where}")
    return loss


def require_metrics(method: Callable[..., Any], metrics: Any, samples: int) -> Mapping[str, Tensor]:
    """Return the metrics of a batch; raises TaskError unless each has one value per sample."""
    if type(metrics) is not dict:
        require_type(
            method, metrics, Mapping, "a mapping of names to tensors with one value per sample"
        )
    for name, values in metrics.items():
        if not isinstance(values, Tensor) or values.shape != (samples,):
            expected = (
                f"shape ({samples},), one value per sample; return metrics that are not per sample"
                " from meters()"
            )
            raise make_return_error(method, f" for '{name}'", values, expected)
    return metrics  # type: ignore[no-any-return]  # checked above


def check_metric_names(metrics: Iterable[str], hooks: Mapping[str, Hook]) -> None:
    """Raise TaskError for a metric that is an entry of every report, and for one of a phase that a
    hook adds for each phase."""
    for metric in metrics:
        if metric in REPORT_ENTRIES:
            raise TaskError(
                f"`{metric}` in state.metrics is an entry of every report; choose another name for the"
                " metric"
            )
        phase, _, name = metric.rpartition("/")
        hook = find_hook_with_metric(name, hooks)
        if phase and hook is not None:
            raise TaskError(
                f"{metric} would be a metric of the task and of the hook '{hook}'; rename the task's"
            )


def check_has_gradient(method: Callable[..., Any], loss: Tensor) -> None:
    """Raise TaskError if a loss has no gradient, which is why its backward pass has failed.

    The error hides torch's: in a chain, that one would look like the failure of a lost peer.
    """
    if loss.requires_grad:
        return
    raise TaskError(
        f"{method.__name__}() returns a loss without a gradient: it was detached, computed under"
        " no_grad, or depends on no trainable parameter of the model"
        f"{find_source_location(method)}"
    ) from None


def describe(value: Any) -> str:
    """Return a value's type and shape, or a number itself."""
    if value is None or isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return add_article(type(value).__name__)


def make_return_error(
    method: Callable[..., Any], place: str, value: Any, expected: str
) -> TaskError:
    """Return the error for a value that the task's method must not return."""
    name = getattr(method, "__name__", "collate")
    where = find_source_location(method)
    return TaskError(f"{name}() returns {describe(value)}{place}; expected {expected}{where}")
