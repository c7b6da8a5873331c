"""An experiment in full: its components found, their parameters checked and filled in. Driver and worker."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from orchestrator.config.components import MadeHook, check_optimizer, make_hooks, make_task
from orchestrator.config.experiment import Component, Experiment, wrong_length
from orchestrator.config.overrides import set_path
from orchestrator.config.parameters import check
from orchestrator.errors import ConfigError, Problem

P = ParamSpec("P")
R = TypeVar("R")


def completed(data: dict[str, Any]) -> Experiment:
    """The experiment with its components filled in; raises ConfigError with the problems of all of them."""
    data = _with_default_optimizer({key: value for key, value in data.items() if value is not None})
    problems: list[Problem] = []
    experiment = attempt(problems, check, Experiment, data, "")
    if experiment is None and all(problem.path for problem in problems):
        message = wrong_length(data.get("epochs"), data.get("steps"))
        problems.extend([Problem("", message)] if message else [])
    filled = {**data, **_components(data, problems)}
    if problems:
        raise ConfigError(problems)
    return check(Experiment, filled, "")


def _components(data: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Task arguments and hooks in full; checks whatever has the right shape, so that one mistake hides no other."""
    name, arguments, entries = data.get("task"), data.get("task_args", {}), data.get("hooks", {})
    made = None
    if isinstance(name, str) and isinstance(arguments, dict):
        made = attempt(problems, make_task, name, arguments)
    task, task_args = made or (None, arguments)
    hooks: dict[str, MadeHook | None] = {}
    if isinstance(entries, dict):
        hooks = attempt(problems, make_hooks, entries, task.required_hooks() if task else {}) or {}
    problems.extend(_sharding_problems(data, hooks))
    attempt(problems, _check_optimizer, data)
    return {"task_args": task_args, "hooks": {name: one.entry if one else None for name, one in hooks.items()}}


def _sharding_problems(data: Mapping[str, Any], hooks: Mapping[str, MadeHook | None]) -> list[Problem]:
    """What cannot be where ranks share out the model among them."""
    workers = data.get("workers")
    if not isinstance(workers, dict) or workers.get("strategy") != "fsdp":
        return []
    reasons = {f"hooks.{name}": one.hook.needs_whole_model() for name, one in hooks.items() if one}
    if data.get("precision") == "fp16":
        reasons["precision"] = "each rank would scale the loss by its own shards' overflows; bf16 needs no scale"
    if data.get("channels_last"):
        reasons["channels_last"] = "torch shards only parameters whose elements lie in their own order"
    if data.get("compile"):
        reasons["compile"] = "torch's compiler stops at the calls that gather each unit's parameters"
    return [Problem(path, f"cannot be with workers.strategy: fsdp: {reason}") for path, reason in reasons.items() if reason]


def _with_default_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """Arguments without a `type` are those of the default optimizer: `optimizer: {lr: 0.5}`."""
    given = data.get("optimizer")
    if not isinstance(given, dict) or "type" in given:
        return data
    default: Component = Experiment.model_fields["optimizer"].default
    return {**data, "optimizer": {"type": default.type, **default.arguments, **given}}


def _check_optimizer(data: Mapping[str, Any]) -> None:
    default = Experiment.model_fields["optimizer"].default
    optimizer, scheduler = (_component(data.get(key)) for key in ("optimizer", "scheduler"))
    check_optimizer(optimizer or default, scheduler)


def _component(value: Any) -> Component | None:
    shaped = isinstance(value, dict) and isinstance(value.get("type"), str)
    return check(Component, value, "") if shaped else None


# Asking what would be


def attempt(problems: list[Problem], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """The function's value, or None once its problems are noted."""
    try:
        return function(*args, **kwargs)
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def single(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an experiment's data without its sweep."""
    return copy.deepcopy({key: value for key, value in data.items() if key != "sweep"})


def problems_with(values: Mapping[str, Any], data: dict[str, Any]) -> Sequence[Problem]:
    """What is wrong with an experiment that has these values, by dotted path; changes `data`."""
    try:
        for name, value in values.items():
            set_path(data, name, copy.deepcopy(value))
        completed(data)
    except ConfigError as error:
        return error.problems
    return ()


def seen_from(name: str, problem: Problem) -> str:
    """The problem's message as seen from `name`: with the rest of its path where it lies below or beside."""
    above = not problem.path or name.startswith(f"{problem.path}.")
    place = "" if above else problem.path.removeprefix(name).removeprefix(".")
    return f"{place}: {problem.message}" if place else problem.message
