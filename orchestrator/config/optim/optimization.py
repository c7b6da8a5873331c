"""What trains: an optimizer and its scheduler, or several by name. From what was written to what is checked, before
there is a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hooks import Hook
from orchestrator.config.optim.optimizer import (
    OPTIMIZERS,
    OWN,
    check_optimizer,
    closure_problems,
    has_own_method,
    optimizer_with_defaults,
)
from orchestrator.config.optim.parameter_groups import scaled_rates
from orchestrator.config.optim.schedule import (
    Schedule,
    Timeline,
    interval_of,
    scheduler_with_defaults,
    stepping_problems,
)
from orchestrator.config.optim.scheduler import unread_rate
from orchestrator.config.python.parameters import check
from orchestrator.config.sections.experiment import Component, Experiment, NamedOptimizer, Optimization, Scheduler
from orchestrator.config.text.source import with_value
from orchestrator.errors import Problem, collect_problems
from orchestrator.task import Task, takes_turns


def optimization_with_defaults(
    data: dict[str, Any], task: type[Task] | None, problems: list[Problem]
) -> dict[str, Any]:
    """The data with optimizers and schedulers in full: the task's own where the file leaves them to it. What is wrong
    is left out, and so is what an unknown task would have to say."""
    full = _beside_several(data, problems) if data.get("optimizers") else _one_in_full(data, task, problems)
    return _with_pace(full, task or Task)


def _one_in_full(data: dict[str, Any], task: type[Task] | None, problems: list[Problem]) -> dict[str, Any]:
    written: dict[str, Any] = {"optimizer": data.get("optimizer", {}), "scheduler": data.get("scheduler")}
    if "scheduler" not in data and task and has_own_method(task, "scheduler"):
        written["scheduler"] = {}
    full = dict(data)
    for key, in_full in (("optimizer", optimizer_with_defaults), ("scheduler", scheduler_with_defaults)):
        if not isinstance(written[key], dict) and not (key == "scheduler" and isinstance(written[key], list)):
            continue
        full.pop(key, None)
        if task or isinstance(written[key], list) or written[key].get("type", OWN) != OWN:
            value = collect_problems(problems, in_full, written[key], task or Task)
            full |= {key: value} if value is not None else {}
    shaped = isinstance(full.get("optimizer"), dict) and isinstance(full.get("scheduler"), dict | list)
    if shaped and (message := unread_rate(full["optimizer"], full["scheduler"])):
        problems.extend(_unread("optimizer", written["optimizer"], message))
        full["optimizer"] = {key: value for key, value in full["optimizer"].items() if key != "lr"}
    return full


def _beside_several(data: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """The data without what says nothing of several optimizers; with its default value it may stand beside them."""
    usual = Experiment.model_fields["optimizer"].default.model_dump()
    for key, default, hint in (
        ("optimizer", usual, "write it as one of them"),
        ("scheduler", None, "write it below one of them"),
    ):
        if data.get(key, default) != default:
            problems.append(Problem(key, "is read by nothing beside optimizers", suggestion=hint))
    for name, written in data["optimizers"].items() if isinstance(data["optimizers"], dict) else ():
        message = (
            unread_rate(written, written.get("scheduler"), f"optimizers.{name}.scheduler")
            if isinstance(written, dict)
            else None
        )
        problems.extend(_unread(f"optimizers.{name}", written, message) if message else [])
    return {key: value for key, value in data.items() if key not in ("optimizer", "scheduler")}


def _unread(path: str, optimizer: Mapping[str, Any], message: str) -> list[Problem]:
    keys = (["lr"] if "lr" in optimizer else []) + scaled_rates(optimizer)
    return [Problem(f"{path}.{key}", message, suggestion="leave one of them out") for key in keys]


def _with_pace(data: dict[str, Any], task: type[Task]) -> dict[str, Any]:
    """The data with the pace at which the hook steps schedulers that have paces of their own, unless that is said."""
    hooks = data.get("hooks", {})
    entry = hooks.get("param_scheduler", True) if isinstance(hooks, dict) else None
    pace = collect_problems([], interval_of, _written(data), task)
    if (
        pace is None
        or not entry
        or (isinstance(entry, dict) and {"every", "type"} & entry.keys())
        or not isinstance(entry, bool | dict)
    ):
        return data
    return with_value(data, "hooks.param_scheduler.every", str(pace))


def check_optimization(
    data: Mapping[str, Any], task: type[Task] | None, hooks: Mapping[str, Hook], problems: list[Problem]
) -> None:
    """Optimizers and schedulers, and who steps these. A scheduler that is said to be null may be a sweep's other
    value."""
    several = bool(data.get("optimizers"))
    if task and takes_turns(task) != several:
        message = f"is missing: {task.__name__}.turns() says what each of several optimizers is trained with"
        unread = f"are read by nothing: {task.__name__} has no method turns(), which says what each is trained with"
        problems.append(Problem("optimizers", unread if several else message))
    optimizations, timeline = _written(data), Timeline.of(hooks, data.get("epochs"), data.get("steps"))
    for one in optimizations:
        collect_problems(problems, check_optimizer, one, task or Task)
        if one.optimizer.type in OPTIMIZERS:
            problems.extend(closure_problems(OPTIMIZERS[one.optimizer.type], data))
    if any(one.scheduler for one in optimizations) or "scheduler" not in data:
        problems.extend(stepping_problems(optimizations, hooks, task or Task))
    for one in optimizations:
        schedule = (
            collect_problems(problems, Schedule.of, one.scheduler, task or Task, timeline, one.scheduler_path)
            if one.scheduler
            else None
        )
        collect_problems(problems, schedule.check, task or Task) if schedule else None


def _written(data: Mapping[str, Any]) -> Sequence[Optimization]:
    """The optimizers that have the right shape; what is wrong with others is told elsewhere."""
    several = data.get("optimizers")
    if isinstance(several, dict) and several:
        named = {
            name: collect_problems([], check, NamedOptimizer, one, "")
            for name, one in several.items()
            if isinstance(one, dict)
        }
        return [Optimization.named(name, one) for name, one in named.items() if one]
    optimizer, scheduler = _component(data.get("optimizer")), _schedulers(data.get("scheduler"))
    if optimizer is None and scheduler is None:
        return []
    # Where the optimizer is wrong, its scheduler is looked at beside the default one.
    return [Optimization("", optimizer or Experiment.model_fields["optimizer"].default, scheduler)]


def _component(value: Any) -> Component | None:
    shaped = isinstance(value, dict) and isinstance(value.get("type"), str)
    return check(Component, value, "") if shaped else None


def _schedulers(value: Any) -> Scheduler | None:
    """One scheduler or several; None where there is none, or one has not the right shape, which is told elsewhere."""
    if not isinstance(value, list):
        return _component(value)
    each = [one for one in map(_component, value) if one]
    return each if each and len(each) == len(value) else None
