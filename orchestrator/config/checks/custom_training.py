"""A task that trains by itself: what it reads of an experiment, and what is refused as nothing reads it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from hooks import HOOKS
from hooks.hook import Setup
from orchestrator.config.components import DEFAULT_HOOKS
from orchestrator.config.python.parameters import check
from orchestrator.config.python.user_code import source_location
from orchestrator.config.sections.experiment import Experiment
from orchestrator.errors import Problem, did_you_mean
from orchestrator.task import Task

_READ = frozenset(
    [
        "name",
        "task",
        "task_args",
        "epochs",
        "steps",
        "seed",
        "max_failures",
        "hang",
        "workers",
        "upload_interval_s",
        "environment",
        "tags",
        "notes",
        "hooks",
        "sweep",
    ]
)
"""What a run reads of its experiment whatever trains."""
_ASKED_OF_RAY = frozenset(["count", "gpu", "cpus", "memory", "accelerator", "resources"])


def declared(task: type[Task]) -> dict[str, inspect.Parameter]:
    """What `train` declares after `session`: keys of the experiment, by name."""
    parameters = list(inspect.signature(task.train).parameters.values())[2:]
    return {one.name: one for one in parameters}


def custom_training_with_defaults(data: Mapping[str, Any], task: type[Task], problems: list[Problem]) -> dict[str, Any]:
    """The data with what `train` declares, and without what nothing reads; with its default value such may stand
    there."""
    usual, arguments = _usual(), declared(task)
    if not inspect.isgeneratorfunction(inspect.unwrap(task.train)):
        problems.append(
            Problem(
                "task",
                f"{task.__name__}.train() has no `yield`, so it reports nothing{source_location(task.train)}",
            )
        )
    if len(inspect.signature(task.train).parameters) < 2:
        problems.append(
            Problem(
                "task",
                f"{task.__name__}.train() takes no session{source_location(task.train)}",
                suggestion="write def train(self, session)",
            )
        )
    offered = usual.keys() - _READ
    for name in arguments.keys() - offered:
        hint = did_you_mean(name, offered) or "make it a field of the task, which is written in task_args"
        message = (
            f"{task.__name__}.train() declares {name}, and what it declares after session are keys of the experiment"
            f" that it reads{source_location(task.train)}"
        )
        problems.append(Problem("task", message, suggestion=hint))
    unread = [key for key in data if key in offered - arguments.keys()]
    for key in unread:
        if _differs(data[key], usual[key]):
            message = f"is read by nothing: {task.__name__} trains by itself, and its train() does not declare {key}"
            problems.append(Problem(key, message, suggestion=f"leave it out, or write def train(self, session, {key})"))
    workers = data.get("workers")
    for key, value in workers.items() if isinstance(workers, Mapping) else ():
        if key in usual["workers"].keys() - _ASKED_OF_RAY and _differs(value, usual["workers"][key]):
            problems.append(
                Problem(
                    f"workers.{key}",
                    f"is read by nothing: {task.__name__} trains by itself, and shares out its model as it likes",
                )
            )
    defaults = {
        name: one.default for name, one in arguments.items() if name in offered and one.default is not one.empty
    }
    return {**defaults, **{key: value for key, value in data.items() if key not in unread}}


def fitting_defaults() -> list[str]:
    """The hooks of an experiment that does not say otherwise, without those that need the hooked loop."""
    setup = Setup(custom_loop=True)
    return [name for name in DEFAULT_HOOKS if not setup.find_reason_against(HOOKS[name]())]


@cache
def _usual() -> dict[str, Any]:
    """Every key with its default."""
    return check(Experiment, {"name": "usual", "task": "usual:Usual", "epochs": 1}, "").model_dump(mode="json")


def _differs(value: Any, usual: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(usual, Mapping):
        return any(key not in usual or _differs(one, usual[key]) for key, one in value.items())
    return bool(value != usual)
