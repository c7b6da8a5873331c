"""What may change while a run goes on."""

from __future__ import annotations

from typing import Any

from orchestrator.config.components import hook_class, make_hook
from orchestrator.config.experiment import Component, Experiment, number_of_optimizer
from orchestrator.config.optimizer import check_optimizer
from orchestrator.config.source import with_value
from orchestrator.errors import Problem, collect_problems
from orchestrator.task import Task


def unchangeable(path: str, experiment: Experiment) -> str | None:
    """Why a setting cannot change while the run goes on; None where it can: fields that a hook calls mutable, and
    numbers of the optimizer."""
    group, _, rest = path.partition(".")
    if number_of_optimizer(path):
        return None
    name, _, field = rest.partition(".")
    if group != "hooks" or not field:
        return "cannot change in flight; fields of hooks and numbers of the optimizer can"
    entry = experiment.hooks.get(name)
    if not isinstance(entry, dict):
        return f"there is no hook '{name}' that is on"
    mutable = sorted(hook_class(entry["type"]).mutable)
    if field in mutable:
        return None
    return f"cannot change in flight; of '{name}' {', '.join(mutable) or 'nothing'} can"


def change_problems(experiment: Experiment, task: type[Task]) -> list[Problem]:
    """What is wrong with the changes of an experiment in full: each is tried in the component that it changes."""
    problems: list[Problem] = []
    lengths = {"epochs": experiment.epochs, "steps": experiment.steps}
    for index, change in enumerate(experiment.changes):
        total = lengths[change.at.unit]
        if total is not None and change.at.count >= total:
            problems.append(Problem(f"changes.{index}.at", f"is {change.at}, and the run is over after {total}"))
        for name, value in change.set.items():
            message = unchangeable(name, experiment)
            found = [Problem(name, message)] if message else _refused(name, value, experiment, task)
            path = f"changes.{index}.set.{name}"
            problems.extend(Problem(path, seen_from(name, one), suggestion=one.suggestion) for one in found)
    return problems


def _refused(path: str, value: Any, experiment: Experiment, task: type[Task]) -> list[Problem]:
    """What the component says to a value that may change in flight."""
    problems: list[Problem] = []
    group, name, *_ = path.split(".")
    changed = collect_problems(problems, with_value, {"optimizer": experiment.optimizer.model_dump(), "hooks": experiment.hooks}, path, value)
    if changed is None:
        return problems
    if group == "optimizer":
        if type(value) not in (int, float):
            return [Problem(path, f"must be a number to change in flight, got {value!r}")]
        collect_problems(problems, check_optimizer, Component(**changed["optimizer"]), task)
    else:
        collect_problems(problems, make_hook, name, changed["hooks"][name])
    return problems


def seen_from(name: str, problem: Problem) -> str:
    """The problem's message as seen from `name`: with the rest of its path where it lies below or beside."""
    above = not problem.path or name == problem.path or name.startswith(f"{problem.path}.")
    place = "" if above else problem.path.removeprefix(f"{name}.")
    return f"{place}: {problem.message}" if place else problem.message
