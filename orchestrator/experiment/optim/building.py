"""Optimizers over the parameters of a model: those of a file's classes, or the task's own."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hooks.errors import add_article
from hooks.optimizer_name import OptimizerName
from hooks.parameter_names import join_names, match_names
from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.construction import build_component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.optimizer import find_optimizer_class
from orchestrator.experiment.optim.parameter_groups import make_parameter_groups, read_groups
from orchestrator.experiment.optim.task_factories import has_own_method
from orchestrator.task import Task
from orchestrator.units import format_count


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
        return _build_by_task(optimization, task, model)

    cls = find_optimizer_class(optimizer.type, path)
    named = _select_parameters(optimization, task, model)
    parameters: Any = list(dict.fromkeys(named.values()))
    if optimization.groups is not None:
        parameters = make_groups(optimization, named)
    built: Optimizer = build_component(cls, parameters, optimization.arguments, path)
    return built


def make_groups(
    optimization: Optimization, named: Mapping[str, nn.Parameter]
) -> list[dict[str, Any]]:
    """Return the parameter groups of a file's optimizer over parameters by name, each with its own
    arguments.

    Raises ConfigError.
    """
    path = optimization.path
    cls = find_optimizer_class(optimization.optimizer.type, path)
    rate = _find_rate(cls, optimization.arguments)
    return make_parameter_groups(named, read_groups(optimization.groups, path), rate, path)


def _find_rate(cls: Callable[..., Any], arguments: Mapping[str, Any]) -> float | None:
    """Return the learning rate of an optimizer, written or by default; None if it has none."""
    argument = inspect.signature(cls).parameters.get("lr")
    default = argument.default if argument else None
    rate = arguments.get("lr", default)
    return float(rate) if isinstance(rate, int | float) else None


def _build_by_task(optimization: Optimization, task: Task, model: nn.Module) -> Optimizer:
    method = f"{type(task).__name__}.optimizer()"
    built = task.optimizer(model, **optimization.optimizer.arguments)
    if not isinstance(built, Optimizer):
        raise ConfigError.at(
            "task",
            f"{method} must return an optimizer, got {add_article(type(built).__name__)}",
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
    """Return the parameters of an optimizer by name: those of its patterns, or of the task's method,
    which a single optimizer does not need.

    Raises ConfigError if there are none.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    if not optimization.name:
        return named

    path = f"{optimization.path}.params"
    if optimization.patterns:
        try:
            return {name: named[name] for name in match_names(optimization.patterns, named)}
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
        has = f"but optimizers has {join_names(optimizers)}"
        raise ConfigError.at("task", f"{method} returns {join_names(unknown)}, {has}")


def _check_all_trained(optimizers: Iterable[Optimizer], model: nn.Module) -> None:
    """Raise ConfigError if no optimizer has one of the parameters that require a gradient."""
    trained = _list_trained(optimizers)
    untrained = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in trained
    ]
    if untrained:
        names = join_names(untrained, 4)
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
