"""The optimizer: torch's, a custom class, or the task's own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import listed, matched
from orchestrator.errors import ConfigError, Problem, find_problems, raise_problems
from orchestrator.experiment.fields.parameters import make_signature_model
from orchestrator.experiment.optim.component import (
    DEFAULT_OPTIMIZER,
    FROM_TASK,
    Component,
    Optimization,
)
from orchestrator.experiment.optim.construction import (
    NoParameters,
    build_component,
    check_component,
    fill_method_defaults,
    find_subclasses,
    has_own_method,
)
from orchestrator.experiment.optim.parameter_groups import (
    Group,
    group_settings,
    make_parameter_groups,
    read_groups,
)
from orchestrator.experiment.yaml.document import join
from orchestrator.task import Task
from orchestrator.units import format_count
from orchestrator.user_code import find_class

OPTIMIZERS = find_subclasses(torch.optim, Optimizer)
GROUP_KEYS = tuple(Group.model_fields)
_ADAGRAD_ONCE = "initial_accumulator_value"


def fill_optimizer_defaults(optimizer: Component, task: type[Task]) -> Component:
    """Return the optimizer with its `type` and defaults; without `type`, the task's own or SGD.

    Raises ConfigError.
    """
    if optimizer.type == FROM_TASK or (not optimizer.type and has_own_method(task, "optimizer")):
        filled = fill_method_defaults(optimizer.arguments, task, "optimizer", "optimizer")
        return Component.model_validate(filled)
    if optimizer.type:
        return optimizer
    written = Component(type=DEFAULT_OPTIMIZER.type, **optimizer.arguments)
    return Component.model_validate({**DEFAULT_OPTIMIZER.model_dump(), **written.arguments})


# Checks, before there is a model


def check_optimizer(optimization: Optimization, task: type[Task]) -> None:
    """Check an optimizer before there is a model, or raise ConfigError."""
    optimizer = optimization.optimizer
    path = optimization.path
    if optimizer.type == FROM_TASK and not optimization.name:
        fill_method_defaults(optimizer.arguments, task, "optimizer", path)
        return
    if not optimizer.type:
        raise ConfigError.at(f"{path}.type", "is missing")

    arguments, groups = _split_groups(optimizer, path)
    own_keys = ("params", "scheduler") if optimization.name else ()
    keys = ("type", "groups", *own_keys)
    raise_problems(
        chain(
            _check_arguments(optimizer.type, arguments, path, keys),
            _check_groups(optimizer.type, arguments, groups, path),
            _check_has_parameters(optimization, task),
        )
    )


def _check_has_parameters(optimization: Optimization, task: type[Task]) -> Iterator[Problem]:
    """Yield a problem if nothing says which parameters one of several optimizers trains."""
    if optimization.name and not optimization.patterns and not has_own_method(task, "parameters"):
        yield Problem(
            f"{optimization.path}.params",
            f"is missing, and {task.__name__} defines no parameters()",
            suggestion="write patterns of names",
        )


def _check_groups(
    kind: str, arguments: Mapping[str, Any], groups: list[Group | None], path: str
) -> Iterator[Problem]:
    """Yield the problems of the optimizer's arguments in each group, which overrides them."""
    cls: Any = find_class(kind, Optimizer, OPTIMIZERS, f"{path}.type")
    if groups and issubclass(cls, torch.optim.LBFGS):
        yield Problem(
            f"{path}.groups",
            f"cannot be used with {cls.__name__}, which treats all parameters alike",
        )
        return
    for index, group in enumerate(groups):
        group_path = f"{path}.groups.{index}"
        if group is None and "weight_decay" not in make_signature_model(cls).model_fields:
            yield Problem(group_path, f"no_decay has no effect: {kind} has no weight_decay")
            continue
        settings = group_settings(group)
        # torch fills the sums of squared gradients with the optimizer's own value.
        if issubclass(cls, torch.optim.Adagrad) and _ADAGRAD_ONCE in settings:
            yield Problem(
                join(group_path, _ADAGRAD_ONCE),
                "has no effect: Adagrad takes one value for all parameters",
                suggestion="write it beside groups",
            )
        yield from _check_arguments(kind, {**arguments, **settings}, group_path, GROUP_KEYS)


def _check_arguments(
    kind: str, arguments: Mapping[str, Any], path: str, extra_keys: tuple[str, ...]
) -> Iterator[Problem]:
    return find_problems(
        check_component,
        kind,
        arguments,
        Optimizer,
        OPTIMIZERS,
        NoParameters(),
        path,
        extra_keys,
    )


def _split_groups(optimizer: Component, path: str) -> tuple[dict[str, Any], list[Group | None]]:
    arguments = optimizer.arguments
    groups = arguments.pop("groups", None)
    return arguments, [] if groups is None else read_groups(groups, path)


# Building


def build_optimizers(
    optimizations: Mapping[OptimizerName, Optimization], task: Task, model: nn.Module
) -> dict[OptimizerName, Optimizer]:
    """Build the optimizers by name.

    Raises ConfigError, for example if several leave parameters untrained.
    """
    optimizers = {
        name: build_optimizer(optimization, task, model)
        for name, optimization in optimizations.items()
    }
    names = [name for name in optimizers if name is not None]
    if names:
        _check_names(names, task, model)
        _check_all_trained(optimizers.values(), model)
    return optimizers


def build_optimizer(optimization: Optimization, task: Task, model: nn.Module) -> Optimizer:
    """Build an optimizer over its parameters, or call the task's own method.

    Raises ConfigError.
    """
    optimizer = optimization.optimizer
    path = optimization.path
    if optimizer.type == FROM_TASK:
        return _build_by_task(optimizer, task, model)

    cls = find_class(optimizer.type, Optimizer, OPTIMIZERS, f"{path}.type")
    arguments, groups = _split_groups(optimizer, path)
    named = _select_parameters(optimization, task, model)
    parameters: Any = list(dict.fromkeys(named.values()))
    if groups:
        parameters = make_parameter_groups(named, groups, cls, arguments, path)
    built: Optimizer = build_component(cls, parameters, optimizer.type, arguments, path)
    return built


def _build_by_task(optimizer: Component, task: Task, model: nn.Module) -> Optimizer:
    method = f"{type(task).__name__}.optimizer()"
    built = task.optimizer(model, **optimizer.arguments)
    if not isinstance(built, Optimizer):
        raise ConfigError.at(
            "task",
            f"{method} must return an optimizer, got a {type(built).__name__}",
            "remove the method to use the file's optimizer; for several, define turns() and set optimizers",
        )
    if _list_trained([built]).isdisjoint(model.parameters()):
        raise ConfigError.at(
            "task", f"{method} has none of the model's parameters", "pass model.parameters()"
        )
    return built


def _select_parameters(
    optimization: Optimization, task: Task, model: nn.Module
) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters(remove_duplicate=False))
    if not optimization.name:
        return named

    path = f"{optimization.path}.params"
    if optimization.patterns:
        try:
            return {name: named[name] for name in matched(optimization.patterns, named)}
        except ValueError as error:
            raise ConfigError.at(path, str(error)) from None

    parameters = set(_list_parameters_by_name(task, model).get(optimization.name, ()))
    selected = {name: parameter for name, parameter in named.items() if parameter in parameters}
    if not selected:
        method = f"{type(task).__name__}.parameters()"
        raise ConfigError.at(
            path, f"is missing, and {method} returns none for '{optimization.name}'"
        )
    return selected


def _list_parameters_by_name(task: Task, model: nn.Module) -> dict[str, list[Any]]:
    """Return the parameters of each optimizer, as the task's own method selects them."""
    returned: Any = task.parameters(model)
    try:
        return {str(name): list(values) for name, values in returned.items()}
    except (AttributeError, TypeError):
        message = f"must return a mapping of optimizers' names to parameters, got {returned!r}"
        raise ConfigError.at("task", f"{type(task).__name__}.parameters() {message}") from None


def _check_names(optimizers: Sequence[str], task: Task, model: nn.Module) -> None:
    """Raise ConfigError if the task selects parameters for an optimizer that there is not."""
    if not has_own_method(type(task), "parameters"):
        return
    names = _list_parameters_by_name(task, model)
    unknown = [name for name in names if name not in optimizers]
    if unknown:
        method = f"{type(task).__name__}.parameters()"
        has = f"but optimizers has {listed(optimizers)}"
        raise ConfigError.at("task", f"{method} returns {listed(unknown)}, {has}")


def _check_all_trained(optimizers: Iterable[Optimizer], model: nn.Module) -> None:
    trained = _list_trained(optimizers)
    untrained = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in trained
    ]
    if untrained:
        names = listed(untrained, 4)
        raise ConfigError.at(
            "optimizers",
            f"leave {format_count(len(untrained), 'parameter')} of the model untrained: {names}",
            "add them to params, or call requires_grad_(False) on them in model()",
        )


def _list_trained(optimizers: Iterable[Optimizer]) -> set[nn.Parameter]:
    trained: set[nn.Parameter] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            trained.update(group["params"])
    return trained
