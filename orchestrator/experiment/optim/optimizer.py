"""The class of an optimizer, torch's or a custom one, and the checks before there is a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer

from orchestrator.errors import ConfigError, Problem, find_problems, raise_problems
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.construction import (
    NoParameters,
    check_values,
    find_subclasses,
)
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.parameter_groups import Group, GroupEntry, NoDecay, read_groups
from orchestrator.experiment.optim.task_factories import fill_method_defaults, has_own_method
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class

OPTIMIZERS = find_subclasses(torch.optim, Optimizer)
_GROUP_KEYS = tuple(Group.model_fields)
_ADAGRAD_ONCE = "initial_accumulator_value"


def find_optimizer_class(kind: str, path: str) -> type[Optimizer]:
    """Return the class that the `type` of the optimizer at `path` names, or raise ConfigError."""
    return find_class(kind, Optimizer, OPTIMIZERS, f"{path}.type")


def check_optimizer(optimization: Optimization, task: type[Task]) -> None:
    """Check an optimizer before there is a model, or raise ConfigError."""
    optimizer = optimization.optimizer
    path = optimization.path
    if optimizer.type == FROM_TASK and not optimization.name:
        fill_method_defaults(optimizer.arguments, task, "optimizer", path)
        return
    if not optimizer.type:
        raise ConfigError.at(f"{path}.type", "is missing")

    keys = ["type", "groups"]
    if optimization.name:
        keys += ["params", "scheduler"]
    cls = find_optimizer_class(optimizer.type, path)
    arguments = optimization.arguments
    groups = read_groups(optimization.groups, path)
    raise_problems(
        chain(
            find_problems(_check_arguments, cls, arguments, path, keys),
            _check_groups(cls, arguments, groups, path),
            _check_has_parameters(optimization, task),
        )
    )


def _check_arguments(
    cls: Callable[..., Optimizer],
    arguments: Mapping[str, Any],
    path: str,
    extra_keys: Sequence[str],
) -> None:
    """Check names and types of arguments, and for torch's own classes also values.

    Allows `extra_keys` too. Raises ConfigError.
    """
    validate(make_signature_model(cls, extra_keys=tuple(extra_keys)), arguments, path)
    if cls in OPTIMIZERS.values():
        check_values(cls, NoParameters(), arguments, path)


def _check_groups(
    cls: type[Optimizer], arguments: Mapping[str, Any], groups: Sequence[GroupEntry], path: str
) -> Iterator[Problem]:
    """Yield the problems of the optimizer's arguments in each group, which overrides them."""
    if groups and issubclass(cls, torch.optim.LBFGS):
        yield Problem(
            f"{path}.groups",
            f"cannot be used with {cls.__name__}, which treats all parameters alike",
        )
        return

    for index, group in enumerate(groups):
        group_path = f"{path}.groups.{index}"
        if isinstance(group, NoDecay) and not _has_weight_decay(cls):
            yield Problem(group_path, f"no_decay has no effect: {cls.__name__} has no weight_decay")
            continue
        # torch fills the sums of squared gradients with the optimizer's own value.
        if issubclass(cls, torch.optim.Adagrad) and _ADAGRAD_ONCE in group.settings:
            yield Problem(
                join(group_path, _ADAGRAD_ONCE),
                "has no effect: Adagrad takes one value for all parameters",
                suggestion="write it beside groups",
            )
        own_arguments = {**arguments, **group.settings}
        yield from find_problems(_check_arguments, cls, own_arguments, group_path, _GROUP_KEYS)


def _has_weight_decay(cls: Any) -> bool:
    return "weight_decay" in make_signature_model(cls).model_fields


def _check_has_parameters(optimization: Optimization, task: type[Task]) -> Iterator[Problem]:
    """Yield a problem if nothing says which parameters one of several optimizers trains."""
    if optimization.name and not optimization.patterns and not has_own_method(task, "parameters"):
        yield Problem(
            f"{optimization.path}.params",
            f"is missing, and {task.__name__} defines no parameters()",
            suggestion="write patterns of names",
        )
