"""Values that change during a run: which can, and whether the new ones are valid."""

from collections.abc import Iterator, Sequence
from typing import Any

from hooks.interval import Interval
from orchestrator.errors import Problem, find_problems
from orchestrator.experiment.make_hooks import find_hook_class, make_hook
from orchestrator.experiment.optim.optimization import Optimization, parse_optimizer_path
from orchestrator.experiment.optim.optimizer import check_optimizer
from orchestrator.experiment.optim.scheduler_conflicts import find_overwritten_number
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.planned_change import HookChange, NumberChange, PlannedChange
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.training import Change
from orchestrator.experiment.yaml.dotted_paths import is_within
from orchestrator.task import Task


def check_changes(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of the values that change during a run."""
    hooks = dict(experiment.hooks)
    for index, change in _sort_by_time(experiment.changes):
        path = f"changes.{index}"
        yield from _check_time(change, f"{path}.at", experiment)

        changeable = {}
        for name, value in change.set.items():
            reason = _explain_unchangeable(name, value, experiment)
            if reason:
                yield Problem(f"{path}.set.{name}", reason)
            else:
                changeable[name] = value
        planned = PlannedChange.parse(change.at, changeable)
        for hook_change in planned.hooks:
            yield from _change_hook(hooks, hook_change, f"{path}.set")
        for number_change in planned.numbers:
            yield from _check_number(number_change, f"{path}.set", experiment, task)


def _sort_by_time(changes: Sequence[Change]) -> list[tuple[int, Change]]:
    """Return changes with their indices, in the order in which they happen.

    Before there is data, nothing tells whether a number of epochs or one of steps is over first, so
    changes that count both stay as they are written.
    """
    numbered = list(enumerate(changes))
    if len({change.at.unit for change in changes}) == 1:
        numbered.sort(key=lambda item: item[1].at.count)
    return numbered


def _check_time(change: Change, path: str, experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem if the run ends before a change."""
    lengths = {"epochs": experiment.epochs, "steps": experiment.steps}
    total = lengths[change.at.unit]
    if total is not None and change.at.count >= total:
        length = Interval(total, change.at.unit)
        yield Problem(path, f"must be less than the run's {length}, got {change.at}")


def _change_hook(
    entries: dict[str, dict[str, Any]], change: HookChange, path: str
) -> Iterator[Problem]:
    """Change the entry of a hook, or yield the problems of its new values."""
    entry = {**entries[change.hook], **change.fields}
    problems = list(find_problems(make_hook, change.hook, entry))
    if not problems:
        entries[change.hook] = entry
        return
    names = [f"hooks.{change.hook}.{field}" for field in change.fields]
    for problem in problems:
        yield _locate(problem, names, path)


def _check_number(
    change: NumberChange, path: str, experiment: Experiment, task: type[Task]
) -> Iterator[Problem]:
    """Yield the problems of an optimizer with a new number."""
    optimization = list_optimizations(experiment)[change.optimizer]
    name = f"{optimization.path}.{change.key}"
    problems = [
        *find_problems(_check_optimizer_with, optimization, change, task),
        *find_overwritten_number(optimization, change.key),
    ]
    for problem in problems:
        yield _locate(problem, [name], path)


def _check_optimizer_with(
    optimization: Optimization, change: NumberChange, task: type[Task]
) -> None:
    check_optimizer(optimization.with_number(change.key, change.value), task)


def _locate(problem: Problem, names: Sequence[str], path: str) -> Problem:
    """Return a problem of settings that changed, at the change which it is about.

    `names` are the settings that changed together, and `path` is where they are written.
    """
    about = [name for name in names if is_within(problem.path, name)]
    if not about and len(names) > 1:
        return Problem(path, problem.message, suggestion=problem.suggestion)
    name, *_ = [*about, *names]
    message = make_relative_message(name, problem)
    return Problem(f"{path}.{name}", message, suggestion=problem.suggestion)


def _explain_unchangeable(path: str, value: Any, experiment: Experiment) -> str | None:
    """Return why a setting cannot change to a value during the run; None if it can.

    Mutable fields of hooks and numbers of optimizers can.
    """
    number = parse_optimizer_path(path)
    if number:
        names = list_optimizations(experiment)
        if number[0] not in names:
            available = ", ".join(filter(None, names)) or "one"
            return f"there is no such optimizer; available: {available}"
        if type(value) not in (int, float):
            return f"must be a number, got {value!r}"
        return None

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
