"""A task's own training loop, `Task.train`: the keys that it declares, and those that it does not read."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from hooks import HOOKS
from hooks.setup import Setup
from hooks.suitability import find_reason_against
from orchestrator.errors import Problem
from orchestrator.experiment.fields.needs import find_changed_keys
from orchestrator.experiment.make_hooks import DEFAULT_HOOKS
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.nearest_names import did_you_mean
from orchestrator.task import Task, has_weights
from orchestrator.user_code.failures import find_source_location

_ALWAYS_READ = {
    "name",
    "task",
    "task_args",
    "epochs",
    "steps",
    "seed",
    "max_failures",
    "max_preemptions",
    "hang",
    "workers",
    "upload_every",
    "environment",
    "tags",
    "notes",
    "notify",
    "hooks",
    "sweep",
}
"""Keys that have an effect whatever `train` declares."""
_DECLARABLE = Experiment.model_fields.keys() - _ALWAYS_READ
"""Keys that `train` reads if it declares them."""
_READ_WORKER_KEYS = {"count", "gpu", "cpus", "memory", "accelerator", "resources", "spares"}
"""Keys of `workers` that have an effect whatever `train` does."""


def list_train_parameters(task: type[Task]) -> dict[str, inspect.Parameter]:
    """Return the parameters of `train` after `session`, by name: keys of the experiment."""
    parameters = list(inspect.signature(task.train).parameters.values())
    return {parameter.name: parameter for parameter in parameters[2:]}


def list_train_defaults(task: type[Task]) -> dict[str, Any]:
    """Return the defaults that `train` declares for keys of the experiment."""
    return {
        name: parameter.default
        for name, parameter in list_train_parameters(task).items()
        if name in _DECLARABLE and parameter.default is not parameter.empty
    }


def list_default_hooks() -> list[str]:
    """Return the default hooks that work without the hooked loop."""
    setup = Setup(custom_loop=True)
    return [name for name in DEFAULT_HOOKS if not find_reason_against(HOOKS[name](), setup)]


def check_train_method(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of `train` itself, and of keys that it does not read."""
    method = f"{task.__name__}.train()"
    declared = list_train_parameters(task)
    yield from _check_declaration(task, method, declared)
    yield from _check_unread_keys(experiment, method, declared)
    for key, field in Workers.model_fields.items():
        value = getattr(experiment.workers, key)
        if key not in _READ_WORKER_KEYS and any(find_changed_keys(value, field.default, key)):
            yield Problem(
                f"workers.{key}",
                f"has no effect: {method}, which trains, distributes its own model",
            )


def _check_declaration(
    task: type[Task], method: str, declared: Mapping[str, Any]
) -> Iterator[Problem]:
    location = find_source_location(task.train)
    if not inspect.isgeneratorfunction(inspect.unwrap(task.train)):
        yield Problem("task", f"{method} has no `yield`, so it reports nothing{location}")
    if has_weights(task):
        message = (
            f"{task.__name__}.weight() has no effect: {method}, which trains, weighs its losses"
        )
        where = find_source_location(task.weight)
        yield Problem("task", message + where, suggestion="remove it, or give it another name")
    for key in declared.keys() - _DECLARABLE:
        hint = did_you_mean(key, _DECLARABLE) or "make it a field of the task, which task_args sets"
        reason = "which is not a key of the experiment that it can read"
        yield Problem("task", f"{method} declares {key}, {reason}{location}", suggestion=hint)


def _check_unread_keys(
    experiment: Experiment, method: str, declared: Mapping[str, Any]
) -> Iterator[Problem]:
    for key, field in Experiment.model_fields.items():
        if key not in _DECLARABLE or key in declared:
            continue
        default = field.get_default(call_default_factory=True)
        if any(find_changed_keys(getattr(experiment, key), default, key)):
            yield Problem(
                key,
                f"has no effect: {method}, which trains, does not declare {key}",
                suggestion=f"remove it, or write def train(self, session, {key})",
            )
