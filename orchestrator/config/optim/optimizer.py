"""The optimizer: torch's, one of your own, or the task's. Checked in the driver, built in each worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from hooks.hook import Hook, Setup
from hooks.parameter_names import listed, matched
from orchestrator.config.optim.parameter_groups import Group, parameter_groups, read_groups, settings_of
from orchestrator.config.python.imports import find_class
from orchestrator.config.python.parameters import check, parameters, signature_model
from orchestrator.config.sections.experiment import Component, Optimization, with_default_optimizer
from orchestrator.config.text.reader import join
from orchestrator.errors import ConfigError, Problem, collect_problems, did_you_mean
from orchestrator.task import Task

T = TypeVar("T")

OWN = "task"
"""The `type` of an optimizer or scheduler that the task's own method makes."""

_SAYABLE = (int, float, str, list, tuple, dict, type(None))


def subclasses_in(module: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """The public subclasses of a class in a module, by name."""
    public = {name: value for name, value in vars(module).items() if isinstance(value, type) and name[0] != "_"}
    return {name: cls for name, cls in public.items() if issubclass(cls, base) and cls is not base}


OPTIMIZERS = subclasses_in(torch.optim, Optimizer)


def optimizer_with_defaults(written: Mapping[str, Any], task: type[Task]) -> dict[str, Any]:
    """What is written of the optimizer, with its `type`: without one, the arguments of the task's own `optimizer`, or
    else of the default. Raises ConfigError."""
    if written.get("type", OWN) == OWN and has_own_method(task, "optimizer"):
        return own_method_with_defaults(written, task, "optimizer")
    if written.get("type") == OWN:
        raise ConfigError(
            [Problem("optimizer.type", f"is '{OWN}', and {task.__name__} has no method optimizer() of its own")]
        )
    full: dict[str, Any] = with_default_optimizer({"optimizer": dict(written)})["optimizer"]
    return full


def check_optimizer(optimization: Optimization, task: type[Task]) -> None:
    """Refuses an optimizer that could not be built, before there is a model; raises ConfigError."""
    optimizer, path = optimization.optimizer, optimization.path
    if optimizer.type == OWN and not optimization.name:
        own_method_with_defaults({"type": OWN, **optimizer.arguments}, task, "optimizer")
        return
    arguments, groups = _split(optimizer, path)
    problems: list[Problem] = []
    collect_problems(problems, check_component, optimizer.type, arguments, Optimizer, OPTIMIZERS, _NoParameters(), path)
    if problems:
        raise ConfigError([_with_our_keys(problem, bool(optimization.name)) for problem in problems])
    cls: Any = find_class(optimizer.type, Optimizer, OPTIMIZERS, f"{path}.type")
    for index, group in enumerate(groups):
        place, said = f"{path}.groups.{index}", arguments | settings_of(group)
        if group is None and "weight_decay" not in signature_model(cls).model_fields:
            problems.append(Problem(place, f"is no_decay, and {optimizer.type} takes no weight_decay"))
            continue
        collect_problems(problems, check_component, optimizer.type, said, Optimizer, OPTIMIZERS, _NoParameters(), place)
    if optimization.name and not optimization.patterns and not has_own_method(task, "parameters"):
        problems.append(
            Problem(
                f"{path}.params",
                f"is not said, and {task.__name__} has no method parameters()",
                suggestion="write patterns of names",
            )
        )
    if problems:
        raise ConfigError([_meant_for_a_group(problem) for problem in problems])


def _with_our_keys(problem: Problem, is_named: bool) -> Problem:
    """Return the problem of an unknown key with the keys that stand beside an optimizer's arguments."""
    ours = ["params", "scheduler", "groups"] if is_named else ["groups"]
    if problem.message != "unknown key" or not problem.suggestion:
        return problem
    if problem.suggestion.startswith("known: "):
        known = problem.suggestion.removeprefix("known: ")
        near = did_you_mean(problem.path.rpartition(".")[2], ours)
        return replace(problem, suggestion=near or f"known: {', '.join(ours)}, {known}")
    near = did_you_mean(problem.path.rpartition(".")[2], [*ours, problem.suggestion.split("'")[1]])
    return replace(problem, suggestion=near or problem.suggestion)


def needs_closure(cls: type[Optimizer]) -> bool:
    """Return whether a step calls a closure that computes the loss again, as that of LBFGS does."""
    closure = inspect.signature(cls.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def closure_problems(
    cls: type[Optimizer], data: Mapping[str, Any], hooks: Mapping[str, Hook] | None = None
) -> list[Problem]:
    """Return what an optimizer that needs a closure cannot be combined with."""
    if not needs_closure(cls):
        return []
    setup, reasons = Setup(closure=True, hooks=hooks or {}), {}
    if data.get("optimizers"):
        reasons["optimizers"] = "turns() computes each loss once"
    if data.get("accumulate", 1) != 1:
        reasons["accumulate"] = "each evaluation needs the gradients of the whole batch; write a larger batch_size"
    if data.get("precision") == "fp16":
        reasons["precision"] = "a GradScaler cannot leave out one of several evaluations; write fp32 or bf16"
    if isinstance(workers := data.get("workers"), Mapping) and workers.get("strategy") == "fsdp":
        reasons["workers.strategy"] = "its step joins all gradients in one tensor; write ddp"
    against_hooks = {f"hooks.{name}": hook.unsuitable(setup) for name, hook in setup.hooks.items()}
    return [
        *(Problem(path, reason) for path, reason in against_hooks.items() if reason),
        *(
            Problem(path, f"cannot be used with {cls.__name__}, whose step evaluates the loss several times: {reason}")
            for path, reason in reasons.items()
        ),
    ]


def _meant_for_a_group(problem: Problem) -> Problem:
    """The problem, for a key that is near one of ours with that name."""
    hint = (
        did_you_mean(problem.path.rpartition(".")[2], Group.model_fields) if problem.message == "unknown key" else None
    )
    return replace(problem, suggestion=hint or problem.suggestion)


def build_optimizers(optimizations: Mapping[str, Optimization], task: Task, model: nn.Module) -> dict[str, Optimizer]:
    """The optimizers by name; raises ConfigError, also where one of several leaves parameters to none."""
    made = {name: build_optimizer(one, task, model) for name, one in optimizations.items()}
    if "" in made:
        return made
    own = _parameters_by_name(task, model) if has_own_method(type(task), "parameters") else {}
    if other := [name for name in own if name not in made]:
        message = f"{type(task).__name__}.parameters() gives {listed(other)}, and optimizers has {listed(list(made))}"
        raise ConfigError([Problem("task", message)])
    trained = {
        parameter for optimizer in made.values() for group in optimizer.param_groups for parameter in group["params"]
    }
    left = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter not in trained
    ]
    if left:
        message = f"train {len(left)} of the model's parameters with none of them: {listed(left, 4)}"
        raise ConfigError(
            [
                Problem(
                    "optimizers",
                    message,
                    suggestion="name them in params, or write requires_grad_(False) for them in model()",
                )
            ]
        )
    return made


def build_optimizer(optimization: Optimization, task: Task, model: nn.Module) -> Optimizer:
    """The optimizer over its parameters of the model, or what the task's own method makes; raises ConfigError."""
    optimizer, path = optimization.optimizer, optimization.path
    if optimizer.type != OWN:
        cls = find_class(optimizer.type, Optimizer, OPTIMIZERS, f"{path}.type")
        arguments, groups = _split(optimizer, path)
        named = _trained(optimization, task, model)
        parameters: Any = (
            parameter_groups(named, groups, cls, arguments, path) if groups else list(dict.fromkeys(named.values()))
        )
        made: Optimizer = made_of(cls, parameters, optimizer.type, arguments, path)
        return made
    own, method = task.optimizer(model, **optimizer.arguments), f"{type(task).__name__}.optimizer()"
    if not isinstance(own, Optimizer):
        hint = (
            "for several write turns(), and optimizers in the file"
            if isinstance(own, Collection)
            else "leave the method out where the file says it"
        )
        given = "None" if own is None else f"a {type(own).__name__}"
        raise ConfigError([Problem("task", f"{method} gives {given}, and must give an optimizer", suggestion=hint)])
    if not set(model.parameters()).intersection(one for group in own.param_groups for one in group["params"]):
        raise ConfigError(
            [
                Problem(
                    "task",
                    f"{method} gives an optimizer that has none of the model's parameters",
                    suggestion="make it of model.parameters()",
                )
            ]
        )
    return own


def _trained(optimization: Optimization, task: Task, model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that an optimizer trains, by name; raises ConfigError with near names for a pattern that matches
    none."""
    named = dict(model.named_parameters(remove_duplicate=False))
    if not optimization.name:
        return named
    if optimization.patterns:
        try:
            return {name: named[name] for name in matched(optimization.patterns, named)}
        except ValueError as error:
            raise ConfigError([Problem(f"{optimization.path}.params", str(error))]) from None
    given = set(_parameters_by_name(task, model).get(optimization.name, ()))
    found = {name: parameter for name, parameter in named.items() if parameter in given}
    if not found:
        message = (
            f"is not said, and {type(task).__name__}.parameters() gives no parameters of the model for"
            f" '{optimization.name}'"
        )
        raise ConfigError([Problem(f"{optimization.path}.params", message)])
    return found


def _parameters_by_name(task: Task, model: nn.Module) -> dict[str, list[Any]]:
    """What the task's `parameters` gives; raises ConfigError for anything but names and parameters."""
    given: Any = task.parameters(model)
    try:
        return {str(name): list(those) for name, those in given.items()}
    except (AttributeError, TypeError):
        method = f"{type(task).__name__}.parameters()"
        raise ConfigError(
            [Problem("task", f"{method} gives {given!r}, and must give a mapping of optimizers' names to parameters")]
        ) from None


def _split(optimizer: Component, path: str) -> tuple[dict[str, Any], list[Group | None]]:
    """The arguments of an optimizer's class, and its parameter groups; raises ConfigError."""
    arguments = optimizer.arguments
    written = arguments.pop("groups", None)
    return arguments, [] if written is None else read_groups(written, path)


# What optimizers and schedulers have in common


def has_own_method(task: type[Task], method: str) -> bool:
    """Whether a task makes its `optimizer` or `scheduler` itself."""
    return getattr(task, method) is not getattr(Task, method)


def own_method_with_defaults(written: Mapping[str, Any], task: type[Task], method: str) -> dict[str, Any]:
    """What is written for a method of the task's, with the defaults of all that it declares; raises ConfigError."""
    given = {key: value for key, value in written.items() if key != "type"}
    try:
        checked = check(model_of_own(task, method), given, method)
    except ConfigError as error:
        raise ConfigError([_explained(problem, task, method) for problem in error.problems]) from None
    full = checked.model_dump(mode="json", warnings=False, fallback=str)
    # A default that YAML cannot say is left to the method.
    sayable = {name for name in full if name in given or isinstance(getattr(checked, name), _SAYABLE)}
    return {"type": OWN, **{name: value for name, value in full.items() if name in sayable}}


def model_of_own(task: type[Task], method: str) -> Any:
    """A pydantic model with what a method of the task's declares beside the model or optimizer that it is given."""
    return signature_model(getattr(task, method), skip=2)


def _explained(problem: Problem, task: type[Task], method: str) -> Problem:
    """The problem, where a key is not declared with what to do about it."""
    if problem.message != "unknown key":
        return problem
    key = problem.path.rpartition(".")[2]
    first = list(inspect.signature(getattr(task, method)).parameters)[1]
    declare = f"declare it there, def {method}(self, {first}, {key}=...), or say type to train with another {method}"
    near = problem.suggestion if problem.suggestion and problem.suggestion.startswith("did you mean") else None
    hint = f"write task_args.{key}" if key in parameters(task) else near or declare
    return replace(
        problem,
        message=f"is read by nothing: {task.__name__}.{method}() makes the {method} and takes no {key}",
        suggestion=hint,
    )


class _Enough(Exception):
    """The class has checked its arguments and turns to the parameters."""


class _NoParameters:
    """Stands where an optimizer wants parameters."""

    def __iter__(self) -> Iterator[nn.Parameter]:
        raise _Enough


class NoOptimizer(Optimizer):
    """Stands where a scheduler wants an optimizer; to make a real one imports torch's compiler, which takes seconds."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        raise _Enough


def check_component(
    kind: str, arguments: Mapping[str, Any], base: type[T], table: Mapping[str, type[T]], first: Any, path: str
) -> None:
    """Names and types of the arguments are checked against the signature; with torch's own classes, so are the values,
    as far as the class checks them before it looks at parameters. Raises ConfigError."""
    cls: Any = find_class(kind, base, table, join(path, "type"))
    check(signature_model(cls), arguments, path)
    if cls in table.values():
        with suppress(_Enough):
            made_of(cls, first, kind, arguments, path)


def made_of(cls: Callable[..., Any], first: Any, kind: str, arguments: Mapping[str, Any], path: str) -> Any:
    """An optimizer over parameters or a scheduler over an optimizer; raises ConfigError with the class's own words."""
    try:
        return cls(first, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError([Problem(path, f"{kind} refuses this: {error}")]) from error
