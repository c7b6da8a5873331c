"""Checks of a task with a custom training loop: the keys that it reads, and errors for keys without effect."""

import inspect
from collections.abc import Iterator
from typing import Any

from hooks import HOOKS
from hooks.hook import Setup
from orchestrator.config.components import DEFAULT_HOOKS
from orchestrator.config.python.imports import find_source_location
from orchestrator.config.python.parameters import find_changed_keys
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.workers import Workers
from orchestrator.errors import Problem, did_you_mean
from orchestrator.task import Task

_ALWAYS_READ = frozenset(
    "name task task_args epochs steps seed max_failures max_preemptions hang workers upload_every environment tags"
    " notes hooks sweep".split()
)
_DECLARABLE = Experiment.model_fields.keys() - _ALWAYS_READ
_READ_WORKER_KEYS = frozenset(["count", "gpu", "cpus", "memory", "accelerator", "resources", "spares"])


def list_train_parameters(task: type[Task]) -> dict[str, inspect.Parameter]:
    """Return the parameters of `train` after `session`, by name: keys of the experiment."""
    parameters = list(inspect.signature(task.train).parameters.values())[2:]
    return {parameter.name: parameter for parameter in parameters}


def list_train_defaults(task: type[Task]) -> dict[str, Any]:
    declared = list_train_parameters(task).items()
    return {name: value.default for name, value in declared if name in _DECLARABLE and value.default is not value.empty}


def list_default_hooks() -> list[str]:
    """Return the default hooks that work without the hooked loop."""
    setup = Setup(custom_loop=True)
    return [name for name in DEFAULT_HOOKS if not setup.find_reason_against(HOOKS[name]())]


def check_train_method(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of `train` itself, and of keys that it does not read."""
    name, location, declared = task.__name__, find_source_location(task.train), list_train_parameters(task)
    if not inspect.isgeneratorfunction(inspect.unwrap(task.train)):
        yield Problem("task", f"{name}.train() has no `yield`, so it reports nothing{location}")
    for key in declared.keys() - _DECLARABLE:
        hint = did_you_mean(key, _DECLARABLE) or "make it a field of the task, which task_args sets"
        message = f"{name}.train() declares {key}, which is not a key of the experiment that it can read{location}"
        yield Problem("task", message, suggestion=hint)
    for key, field in Experiment.model_fields.items():
        if key in _DECLARABLE - declared.keys():
            default = field.get_default(call_default_factory=True)
            if any(find_changed_keys(getattr(experiment, key), default, key)):
                message = f"has no effect: {name}.train(), which trains, does not declare {key}"
                yield Problem(key, message, suggestion=f"remove it, or write def train(self, session, {key})")
    for key, field in Workers.model_fields.items():
        is_changed = any(find_changed_keys(getattr(experiment.workers, key), field.default, key))
        if key not in _READ_WORKER_KEYS and is_changed:
            yield Problem(f"workers.{key}", f"has no effect: {name}.train(), which trains, distributes its own model")
