"""The keys of a scheduler beside its arguments, and the defaults of the task's own scheduler."""

from typing import Any

from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.optim.component import (
    FROM_TASK,
    Component,
    LRSchedulers,
    PhaseBounds,
    WarmUp,
)
from orchestrator.experiment.optim.construction import fill_method_defaults, has_own_method
from orchestrator.experiment.optim.learning_rate.scheduler import add_length, list_argument_names
from orchestrator.task import Task


def split_arguments(
    scheduler: Component, task: type[Task], extra_keys: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scheduler's own arguments, and the keys beside them that it does not have."""
    arguments = scheduler.arguments
    names = list_argument_names(scheduler.type, task, path)
    extra: dict[str, Any] = {}
    for key in extra_keys.model_fields:
        if key in arguments and key not in names:
            extra[key] = arguments.pop(key)
    return arguments, extra


def fill_scheduler_defaults(
    scheduler: LRSchedulers | None, task: type[Task]
) -> LRSchedulers | None:
    """Return schedulers with their `type` and defaults; without `type`, the task's own.

    Raises ConfigError.
    """
    if scheduler is None:
        return None
    if isinstance(scheduler, Component):
        return _fill_defaults(scheduler, task, WarmUp, "scheduler")
    return [
        _fill_defaults(entry, task, PhaseBounds, f"scheduler.{index}")
        for index, entry in enumerate(scheduler)
    ]


def _fill_defaults(
    scheduler: Component, task: type[Task], extra_keys: type[Model], path: str
) -> Component:
    if scheduler.type != FROM_TASK and (scheduler.type or not has_own_method(task, "scheduler")):
        return scheduler
    own = scheduler.model_copy(update={"type": FROM_TASK})
    arguments, extra = split_arguments(own, task, extra_keys, path)
    with_length = add_length(FROM_TASK, arguments, task, 1, path)
    complete = Component.model_validate(with_length)
    filled = fill_method_defaults(complete, task, "scheduler", path).model_dump()
    for name in with_length.keys() - arguments.keys():
        filled.pop(name)  # the length is that of the run
    return Component.model_validate({**filled, **extra})
