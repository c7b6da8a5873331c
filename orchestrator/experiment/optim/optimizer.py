"""The optimizer: torch's, a custom class, or the task's own. Checked in the driver, built in each
worker."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from textwrap import dedent
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from hooks.hook import Hook, Setup
from hooks.parameter_names import listed, matched
from orchestrator.errors import (
    FOREIGN_KEY,
    UNKNOWN_KEY,
    ConfigError,
    Problem,
    collect_problems,
)
from orchestrator.experiment.fields.field_values import list_parameters
from orchestrator.experiment.fields.parameters import check, make_signature_model
from orchestrator.experiment.optim.parameter_groups import (
    Group,
    group_settings,
    make_parameter_groups,
    read_groups,
)
from orchestrator.experiment.sections.experiment import (
    FROM_TASK,
    Component,
    Experiment,
    Optimization,
)
from orchestrator.experiment.yaml.reader import join
from orchestrator.task import Task
from orchestrator.user_code import find_class

T = TypeVar("T")


_PLAIN_TYPES = (int, float, str, list, tuple, dict, type(None))


def find_subclasses(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Return the public subclasses of a class in a module, by name."""
    public = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and name[0] != "_"
    }
    return {name: cls for name, cls in public.items() if issubclass(cls, base) and cls is not base}


OPTIMIZERS = find_subclasses(torch.optim, Optimizer)
GROUP_KEYS = tuple(Group.model_fields)


def fill_optimizer_defaults(optimizer: Component, task: type[Task]) -> Component:
    """Return the optimizer with its `type` and defaults; without `type`, the task's own or SGD.
    Raises ConfigError."""
    if optimizer.type == FROM_TASK or (not optimizer.type and has_own_method(task, "optimizer")):
        return fill_method_defaults(optimizer, task, "optimizer", "optimizer")
    if optimizer.type:
        return optimizer
    default: Component = Experiment.model_fields["optimizer"].default
    written = Component(type=default.type, **optimizer.arguments)
    return Component.model_validate({**default.model_dump(), **written.arguments})


def check_optimizer(optimization: Optimization, task: type[Task]) -> None:
    """Check an optimizer before there is a model, or raise ConfigError."""
    optimizer, path = optimization.optimizer, optimization.path
    if optimizer.type == FROM_TASK and not optimization.name:
        fill_method_defaults(optimizer, task, "optimizer", path)
        return
    if not optimizer.type:
        raise ConfigError.at(f"{path}.type", "is missing")
    arguments, groups = _split_groups(optimizer, path)
    cls: Any = find_class(optimizer.type, Optimizer, OPTIMIZERS, f"{path}.type")
    # Path, arguments and further keys of the optimizer, then of each group, which overrides the
    # optimizer's arguments
    extra_keys = ("type", "groups", *(("params", "scheduler") if optimization.name else ()))
    settings: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [(path, arguments, extra_keys)]
    problems: list[Problem] = []
    if groups and issubclass(cls, torch.optim.LBFGS):
        message = f"cannot be used with {cls.__name__}, which treats all parameters alike"
        problems.append(Problem(f"{path}.groups", message))
        groups = []
    for index, group in enumerate(groups):
        group_path = f"{path}.groups.{index}"
        if group is None and "weight_decay" not in make_signature_model(cls).model_fields:
            message = f"no_decay has no effect: {optimizer.type} has no weight_decay"
            problems.append(Problem(group_path, message))
        else:
            settings.append((group_path, arguments | group_settings(group), GROUP_KEYS))
    for entry_path, values, keys in settings:
        collect_problems(
            problems,
            check_component,
            optimizer.type,
            values,
            Optimizer,
            OPTIMIZERS,
            _NoParameters(),
            entry_path,
            keys,
        )
    if optimization.name and not optimization.patterns and not has_own_method(task, "parameters"):
        message = f"is missing, and {task.__name__} defines no parameters()"
        problems.append(Problem(f"{path}.params", message, suggestion="write patterns of names"))
    if problems:
        raise ConfigError(problems)


def needs_closure(cls: type[Optimizer]) -> bool:
    """Return whether a step calls a closure that computes the loss again, as in LBFGS and SAM."""
    closure = inspect.signature(cls.step).parameters.get("closure")
    return closure is not None and (
        closure.default is inspect.Parameter.empty or needs_gradients_before(cls)
    )


def needs_gradients_before(cls: type[Optimizer]) -> bool:
    """Return whether a step takes the gradients of the loss, then calls the closure for those at
    other weights.

    By the common recipe of SAM, the closure is optional, but a step fails without it.
    """
    closure = inspect.signature(cls.step).parameters.get("closure")
    is_optional = closure is not None and closure.default is None
    return is_optional and cls not in OPTIMIZERS.values() and _fails_without_closure(cls.step)


@cache
def _fails_without_closure(step: Callable[..., Any]) -> bool:
    """Return whether the code of a step refuses a missing closure, or calls it without asking
    whether there is one."""
    try:
        code = ast.parse(dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):
        return False

    asks = False
    refuses = False
    calls = False
    for node in ast.walk(code):
        match node:
            case ast.Assert(test=test):
                refuses |= _holds(test, missing=False)
            case ast.If(test=test, body=[*_, ast.Raise()]):
                refuses |= _holds(test, missing=True)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.BoolOp(values=[test, *_]):
                asks |= "closure" in ast.unparse(test)
            case ast.Call(func=ast.Name(id="closure")):
                calls = True

    return refuses or (calls and not asks)


def _holds(test: ast.expr, *, missing: bool) -> bool:
    """Return whether a condition holds where the closure is missing, or where there is one."""
    match test:
        case ast.Name(id="closure"):
            return not missing
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="closure")):
            return missing
        case ast.Compare(left=ast.Name(id="closure"), ops=[ast.Is() | ast.IsNot() as operator]):
            return isinstance(operator, ast.Is) == missing
    return False


def find_closure_class(kind: str) -> type[Optimizer] | None:
    """Return the class of an optimizer's `type` if it needs a closure; None for other types, and
    for unknown ones."""
    with suppress(ConfigError):  # check_optimizer reports it
        cls = find_class(kind, Optimizer, OPTIMIZERS)
        return cls if needs_closure(cls) else None
    return None


def check_closure(
    cls: type[Optimizer], experiment: Experiment, hooks: Mapping[str, Hook] | None = None
) -> list[Problem]:
    """Return the problems of settings that exclude an optimizer which needs a closure."""
    if not needs_closure(cls):
        return []
    setup = Setup(closure=True, hooks=hooks or {})
    reasons = {f"hooks.{name}": hook.unsuitable(setup) for name, hook in setup.hooks.items()}
    start = f"cannot be used with {cls.__name__}, whose step evaluates the loss several times"
    if experiment.optimizers:
        reasons["optimizers"] = f"{start}: turns() computes each loss once"
    if experiment.accumulate != 1:
        reasons["accumulate"] = f"{start}, each for the whole batch; write a larger batch_size"
    if experiment.precision == "fp16":
        reasons["precision"] = f"{start}, all with one scale; write fp32 or bf16"
    if experiment.workers.strategy == "fsdp":
        reasons["workers.strategy"] = f"{start}, with all gradients on each rank; write ddp"
    return [Problem(path, reason) for path, reason in reasons.items() if reason]


def build_optimizers(
    optimizations: Mapping[str, Optimization], task: Task, model: nn.Module
) -> dict[str, Optimizer]:
    """Build the optimizers by name; raise ConfigError, for example if several leave parameters
    untrained."""
    optimizers = {
        name: build_optimizer(optimization, task, model)
        for name, optimization in optimizations.items()
    }
    if "" in optimizers:
        return optimizers
    parameters_by_name = (
        _list_parameters_by_name(task, model) if has_own_method(type(task), "parameters") else {}
    )
    if unknown := [name for name in parameters_by_name if name not in optimizers]:
        message = (
            f"{type(task).__name__}.parameters() returns {listed(unknown)}, but optimizers has"
        )
        raise ConfigError.at("task", f"{message} {listed(list(optimizers))}")
    groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
    trained = {parameter for group in groups for parameter in group["params"]}
    untrained = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in trained
    ]
    if untrained:
        message = (
            f"leave {len(untrained)} parameters of the model untrained: {listed(untrained, 4)}"
        )
        hint = "add them to params, or call requires_grad_(False) on them in model()"
        raise ConfigError.at("optimizers", message, hint)
    return optimizers


def build_optimizer(optimization: Optimization, task: Task, model: nn.Module) -> Optimizer:
    """Build an optimizer over its parameters, or call the task's own method; may raise
    ConfigError."""
    optimizer, path = optimization.optimizer, optimization.path
    if optimizer.type != FROM_TASK:
        cls = find_class(optimizer.type, Optimizer, OPTIMIZERS, f"{path}.type")
        arguments, groups = _split_groups(optimizer, path)
        named = _select_parameters(optimization, task, model)
        parameters: Any = list(dict.fromkeys(named.values()))
        if groups:
            parameters = make_parameter_groups(named, groups, cls, arguments, path)
        built: Optimizer = build_component(cls, parameters, optimizer.type, arguments, path)
        return built
    task_optimizer, method = (
        task.optimizer(model, **optimizer.arguments),
        f"{type(task).__name__}.optimizer()",
    )
    if not isinstance(task_optimizer, Optimizer):
        hint = "remove the method to use the file's optimizer; for several, define turns() and set optimizers"
        raise ConfigError.at(
            "task",
            f"{method} must return an optimizer, got a {type(task_optimizer).__name__}",
            hint,
        )
    trained = {parameter for group in task_optimizer.param_groups for parameter in group["params"]}
    if trained.isdisjoint(model.parameters()):
        raise ConfigError.at(
            "task", f"{method} has none of the model's parameters", "pass model.parameters()"
        )
    return task_optimizer


def _select_parameters(
    optimization: Optimization, task: Task, model: nn.Module
) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters(remove_duplicate=False))
    if not optimization.name:
        return named
    if optimization.patterns:
        try:
            return {name: named[name] for name in matched(optimization.patterns, named)}
        except ValueError as error:
            raise ConfigError.at(f"{optimization.path}.params", str(error)) from None
    parameters = set(_list_parameters_by_name(task, model).get(optimization.name, ()))
    selected = {name: parameter for name, parameter in named.items() if parameter in parameters}
    if not selected:
        message = f"is missing, and {type(task).__name__}.parameters() returns none for '{optimization.name}'"
        raise ConfigError.at(f"{optimization.path}.params", message)
    return selected


def _list_parameters_by_name(task: Task, model: nn.Module) -> dict[str, list[Any]]:
    returned: Any = task.parameters(model)
    try:
        return {str(name): list(values) for name, values in returned.items()}
    except (AttributeError, TypeError):
        message = f"must return a mapping of optimizers' names to parameters, got {returned!r}"
        raise ConfigError.at("task", f"{type(task).__name__}.parameters() {message}") from None


def _split_groups(optimizer: Component, path: str) -> tuple[dict[str, Any], list[Group | None]]:
    arguments = optimizer.arguments
    groups = arguments.pop("groups", None)
    return arguments, [] if groups is None else read_groups(groups, path)


# Shared by optimizers and schedulers


def has_own_method(task: type[Task], method: str) -> bool:
    return getattr(task, method) is not getattr(Task, method)


def fill_method_defaults(
    component: Component, task: type[Task], method: str, path: str
) -> Component:
    """Return the arguments for a method of the task, with the defaults that it declares; may raise
    ConfigError."""
    if not has_own_method(task, method):
        raise ConfigError.at(
            f"{path}.type", f"'{FROM_TASK}' needs a method {task.__name__}.{method}()"
        )
    arguments = component.arguments
    try:
        checked = check(make_method_model(task, method), arguments, path)
    except ConfigError as error:
        raise ConfigError(
            [_explain_undeclared(problem, task, method) for problem in error.problems]
        ) from None
    values = checked.model_dump(mode="json", warnings=False, fallback=str)
    # The method keeps a default that YAML cannot hold.
    plain = {
        name
        for name in values
        if name in arguments or isinstance(getattr(checked, name), _PLAIN_TYPES)
    }
    return Component.model_validate(
        {"type": FROM_TASK, **{name: values[name] for name in values if name in plain}}
    )


def make_method_model(task: type[Task], method: str) -> Any:
    """Return a pydantic model of the arguments after the model or optimizer of a task's method."""
    return make_signature_model(getattr(task, method), skip=2)


def _explain_undeclared(problem: Problem, task: type[Task], method: str) -> Problem:
    if problem.code not in (UNKNOWN_KEY, FOREIGN_KEY):
        return problem
    key = problem.path.rpartition(".")[2]
    hint = f"write task_args.{key}" if key in list_parameters(task) else problem.suggestion
    message = f"has no effect: {task.__name__}.{method}() takes no {key}"
    return replace(problem, message=message, suggestion=hint)


class _ArgumentsChecked(Exception):
    """Raised once the class has checked its arguments and begins to use the parameters."""


class _NoParameters:
    """A placeholder for an optimizer's parameters."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        raise _ArgumentsChecked


class NoOptimizer(Optimizer):
    """A placeholder for a scheduler's optimizer; creating a real one imports torch's compiler,
    which takes seconds."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        raise _ArgumentsChecked


def check_component(
    kind: str,
    arguments: Mapping[str, Any],
    base: type[T],
    table: Mapping[str, type[T]],
    first: Any,
    path: str,
    extra_keys: tuple[str, ...] = (),
) -> None:
    """Check names and types of arguments, and for torch's own classes also values, or raise
    ConfigError.

    Values are checked by the class itself, up to its first use of the parameters. `extra_keys` are
    allowed too.
    """
    cls: Any = find_class(kind, base, table, join(path, "type"))
    check(make_signature_model(cls, extra_keys=extra_keys), arguments, path)
    if cls in table.values():
        with suppress(_ArgumentsChecked):
            build_component(cls, first, kind, arguments, path)


def build_component(
    cls: Callable[..., Any], first: Any, kind: str, arguments: Mapping[str, Any], path: str
) -> Any:
    """Build an optimizer over parameters or a scheduler over an optimizer; raise ConfigError with
    the class's error."""
    try:
        return cls(first, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError.at(path, f"{kind} raised: {error}") from error
