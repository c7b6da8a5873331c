"""Values that change during a run: which can, and whether the new ones are valid."""

from collections.abc import Iterator
from typing import Any

from hooks.interval import Interval
from hooks.optimizer_name import OptimizerName
from orchestrator.errors import Problem, find_problems
from orchestrator.experiment.components import find_hook_class, make_hook
from orchestrator.experiment.optim.optimization import list_optimizations, parse_optimizer_path
from orchestrator.experiment.optim.optimizer import check_optimizer
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.task import Task


def check_changes(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of the values that change during a run."""
    lengths = {"epochs": experiment.epochs, "steps": experiment.steps}
    for index, change in enumerate(experiment.changes):
        total = lengths[change.at.unit]
        if total is not None and change.at.count >= total:
            yield Problem(
                f"changes.{index}.at",
                f"must be less than the run's {Interval(total, change.at.unit)}, got {change.at}",
            )
        for name, value in change.set.items():
            path = f"changes.{index}.set.{name}"
            for problem in _check_value(name, value, experiment, task):
                message = make_relative_message(name, problem)
                yield Problem(path, message, suggestion=problem.suggestion)


def _check_value(
    path: str, value: Any, experiment: Experiment, task: type[Task]
) -> Iterator[Problem]:
    message = _explain_unchangeable(path, experiment)
    number = parse_optimizer_path(path)
    if message:
        yield Problem(path, message)
    elif number is None:
        yield from find_problems(_check_field, path, value, experiment)
    elif type(value) not in (int, float):
        yield Problem(path, f"must be a number, got {value!r}")
    else:
        yield from find_problems(_check_number, *number, value, experiment, task)


def _check_field(path: str, value: Any, experiment: Experiment) -> None:
    """Raise ConfigError if a field of a hook cannot have the value."""
    _, hook, field = path.split(".", 2)
    make_hook(hook, with_value(experiment.hooks[hook], field, value))


def _check_number(
    name: OptimizerName, key: str, value: float, experiment: Experiment, task: type[Task]
) -> None:
    """Raise ConfigError if an optimizer cannot have the number."""
    check_optimizer(list_optimizations(experiment)[name].with_number(key, value), task)


def _explain_unchangeable(path: str, experiment: Experiment) -> str | None:
    """Return why a value cannot change during the run; None if it can.

    Mutable fields of hooks and numbers of optimizers can.
    """
    number = parse_optimizer_path(path)
    if number:
        names = list_optimizations(experiment)
        if number[0] in names:
            return None
        return f"there is no such optimizer; available: {', '.join(filter(None, names)) or 'one'}"

    group, _, rest = path.partition(".")
    name, _, field = rest.partition(".")
    if group != "hooks" or not field:
        allowed = "only fields of hooks and numbers of the optimizer can"
        return f"cannot change during training; {allowed}"
    entry = experiment.hooks.get(name)
    if not isinstance(entry, dict):
        return f"there is no active hook '{name}'"
    mutable = sorted(find_hook_class(entry["type"]).mutable)
    if field in mutable:
        return None
    allowed = f"the mutable fields of '{name}' are: {', '.join(mutable) or 'none'}"
    return f"cannot change during training; {allowed}"


def make_relative_message(name: str, problem: Problem) -> str:
    """Return a problem's message for the path `name`, which its own path may be below."""
    is_above = not problem.path or name == problem.path or name.startswith(f"{problem.path}.")
    if is_above:
        return problem.message
    return f"{problem.path.removeprefix(f'{name}.')}: {problem.message}"
