"""Make the task of an experiment from its name and its arguments. Runs in the driver and in each
worker."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ConfigError, collect_problems, raise_problems
from orchestrator.experiment.fields.construction import construct
from orchestrator.experiment.task_methods import check_required_methods, find_wrong_arguments
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class

NO_TASK = "missing:Missing"
"""Name that stands for a task which is missing or wrong."""


def find_task(name: Any) -> type[Task] | None:
    """Return the class of the task, or None if there is none; `make_task` reports why."""
    if not isinstance(name, str) or name == NO_TASK:
        return None
    return collect_problems([], find_class, name, Task, {}, "task")


def make_task(name: str, arguments: Mapping[str, Any]) -> tuple[Task, dict[str, Any]]:
    """Create the task of class `name` (`module:Class`), and return it with all its arguments.

    Raises ConfigError.
    """
    # `Task` is only a bound here.
    cls: type[Task] = find_class(name, Task, {}, "task")  # type: ignore[type-abstract]
    if arguments and not dataclasses.is_dataclass(cls):
        raise ConfigError.at(
            "task_args",
            f"{name} takes no arguments, because it is not a dataclass, got {', '.join(arguments)}",
            "put @dataclass above the class",
        )
    check_required_methods(cls)
    task, all_arguments = construct(cls, arguments, "task_args")
    raise_problems(find_wrong_arguments(task))
    return task, all_arguments
