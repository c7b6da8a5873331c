"""Values that may change during a run."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchestrator.config.components import find_hook_class, make_hook
from orchestrator.config.optim.optimizer import check_optimizer
from orchestrator.config.sections.experiment import Component, Experiment, Optimization, parse_optimizer_path
from orchestrator.config.text.source import with_value
from orchestrator.errors import Problem, collect_problems
from orchestrator.task import Task


def explain_unchangeable(path: str, experiment: Experiment) -> str | None:
    """Return why a value cannot change during the run; None for mutable fields of hooks and numbers of optimizers."""
    group, _, rest = path.partition(".")
    name, _, field = rest.partition(".")
    if number := parse_optimizer_path(path):
        names = experiment.optimizations
        return None if number[0] in names else f"there is no such optimizer; available: {', '.join(names) or 'one'}"
    if group != "hooks" or not field:
        return "cannot change during training; only fields of hooks and numbers of the optimizer can"
    entry = experiment.hooks.get(name)
    if not isinstance(entry, dict):
        return f"there is no active hook '{name}'"
    mutable = sorted(find_hook_class(entry["type"]).mutable)
    if field in mutable:
        return None
    return f"cannot change during training; the mutable fields of '{name}' are: {', '.join(mutable) or 'none'}"


def check_changes(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    lengths = {"epochs": experiment.epochs, "steps": experiment.steps}
    for index, change in enumerate(experiment.changes):
        total = lengths[change.at.unit]
        if total is not None and change.at.count >= total:
            limit = f"{total} {change.at.unit}"
            yield Problem(f"changes.{index}.at", f"must be less than the run's {limit}, got {change.at}")
        for name, value in change.set.items():
            message = explain_unchangeable(name, experiment)
            problems = [Problem(name, message)] if message else _check_values(name, value, experiment, task)
            path = f"changes.{index}.set.{name}"
            for problem in problems:
                yield Problem(path, make_relative_message(name, problem), suggestion=problem.suggestion)


def _check_values(path: str, value: Any, experiment: Experiment, task: type[Task]) -> list[Problem]:
    problems: list[Problem] = []
    number = parse_optimizer_path(path)
    if number and type(value) not in (int, float):
        return [Problem(path, f"must be a number, got {value!r}")]
    if number:
        name, key = number
        changed = collect_problems(problems, with_number, experiment.optimizations[name], key, value)
        if changed:
            collect_problems(problems, check_optimizer, changed, task)
    else:
        _, name, field = path.split(".", 2)
        collect_problems(problems, make_hook, name, with_value(experiment.hooks[name], field, value))
    return problems


def with_number(optimization: Optimization, key: str, value: float) -> Optimization:
    """Return the optimizer with one of its numbers changed; raise ConfigError if it has no such key."""
    return replace(optimization, optimizer=Component(**with_value(optimization.optimizer.model_dump(), key, value)))


def make_relative_message(name: str, problem: Problem) -> str:
    """Return a problem's message for the path `name`, with the rest of the problem's path if it is below or beside."""
    is_above = not problem.path or name == problem.path or name.startswith(f"{problem.path}.")
    relative_path = "" if is_above else problem.path.removeprefix(f"{name}.")
    return f"{relative_path}: {problem.message}" if relative_path else problem.message
