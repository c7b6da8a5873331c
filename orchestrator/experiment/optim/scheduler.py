"""The class of a learning-rate scheduler, torch's or a custom one, and the arguments that it takes."""

from typing import Any

import torch.optim.lr_scheduler
import torch.optim.swa_utils
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.errors import ConfigError
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.optim.component import FROM_TASK, Component
from orchestrator.experiment.optim.construction import find_subclasses
from orchestrator.experiment.optim.task_factories import make_method_model
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class

_UNWRITABLE = {
    **dict.fromkeys(
        ("ChainedScheduler", "SequentialLR"), "combines schedulers; write a list of them"
    ),
    **dict.fromkeys(
        ("LambdaLR", "MultiplicativeLR"),
        "takes a function, which YAML cannot hold; define scheduler() in the task",
    ),
}
"""Schedulers of torch that a file cannot describe, and why."""

_CLASSES = {
    **find_subclasses(torch.optim.lr_scheduler, LRScheduler),
    **find_subclasses(torch.optim.swa_utils, LRScheduler),
}
SCHEDULERS = {name: cls for name, cls in _CLASSES.items() if name not in _UNWRITABLE}

RATES = {"OneCycleLR": "max_lr", "CyclicLR": "base_lr"}
"""Schedulers that set the rate themselves, and the argument; by default the optimizer's rate."""


def find_scheduler_class(kind: str, path: str) -> type[LRScheduler]:
    """Return the class that the `type` of the scheduler at `path` names, or raise ConfigError."""
    return find_class(kind, LRScheduler, SCHEDULERS, f"{path}.type")


def list_argument_names(kind: str, task: type[Task], path: str) -> set[str]:
    """Return the names of a scheduler's arguments, or raise ConfigError for its `type`."""
    if kind == FROM_TASK:
        return set(make_method_model(task, "scheduler").model_fields)
    if not kind:
        raise ConfigError.at(f"{path}.type", "is missing")
    if kind in _UNWRITABLE:
        raise ConfigError.at(f"{path}.type", f"{kind} {_UNWRITABLE[kind]}")
    cls: Any = find_scheduler_class(kind, path)
    return set(make_signature_model(cls).model_fields)


def needs_metric(scheduler: Component, path: str) -> bool:
    """Return whether a scheduler steps by a metric, as ReduceLROnPlateau does."""
    if scheduler.type in ("", FROM_TASK):
        return False
    return issubclass(find_scheduler_class(scheduler.type, path), ReduceLROnPlateau)


def split_arguments(
    scheduler: Component, task: type[Task], keys: type[Model], path: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scheduler's own arguments, and those of `keys` beside them.

    A key that is also an argument of the scheduler is its argument. Raises ConfigError for the
    scheduler's `type`.
    """
    beside = keys.model_fields.keys() - list_argument_names(scheduler.type, task, path)
    own: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in scheduler.arguments.items():
        part = extra if key in beside else own
        part[key] = value
    return own, extra
