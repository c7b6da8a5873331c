"""What may change while a run goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.config.components import hook_class, make_hook
from orchestrator.config.optim.optimizer import check_optimizer
from orchestrator.config.sections.experiment import Component, Experiment, Optimization, parse_optimizer_path
from orchestrator.config.text.source import with_value
from orchestrator.errors import Problem, collect_problems
from orchestrator.task import Task


def explain_unchangeable(path: str, experiment: Experiment) -> str | None:
    """Why a setting cannot change while the run goes on; None where it can: fields that a hook calls mutable, and
    numbers of the optimizer."""
    group, _, rest = path.partition(".")
    number = parse_optimizer_path(path)
    if number:
        there = experiment.optimizations
        return (
            None
            if number[0] in there
            else (
                f"there is no optimizer '{number[0]}'"
                if number[0]
                else f"there are several optimizers: {', '.join(there)}"
            )
        )
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
            message = explain_unchangeable(name, experiment)
            found = [Problem(name, message)] if message else _refused(name, value, experiment, task)
            path = f"changes.{index}.set.{name}"
            problems.extend(Problem(path, seen_from(name, one), suggestion=one.suggestion) for one in found)
    return problems


def _refused(path: str, value: Any, experiment: Experiment, task: type[Task]) -> list[Problem]:
    """What the component says to a value that may change in flight."""
    problems: list[Problem] = []
    number = parse_optimizer_path(path)
    if number and type(value) not in (int, float):
        return [Problem(path, f"must be a number to change in flight, got {value!r}")]
    if number:
        name, key = number
        changed = collect_problems(problems, with_number, experiment.optimizations[name], key, value)
        collect_problems(problems, check_optimizer, changed, task) if changed else None
    else:
        _, name, field = path.split(".", 2)
        collect_problems(problems, make_hook, name, with_value(experiment.hooks[name], field, value))  # type: ignore[arg-type]  # it is on, as `explain_unchangeable` found
    return problems


def with_number(optimization: Optimization, key: str, value: float) -> Optimization:
    """The optimizer with one of its numbers changed; raises ConfigError where there is no place for it."""
    return replace(optimization, optimizer=Component(**with_value(optimization.optimizer.model_dump(), key, value)))


def seen_from(name: str, problem: Problem) -> str:
    """The problem's message as seen from `name`: with the rest of its path where it lies below or beside."""
    above = not problem.path or name == problem.path or name.startswith(f"{problem.path}.")
    place = "" if above else problem.path.removeprefix(f"{name}.")
    return f"{place}: {problem.message}" if place else problem.message
