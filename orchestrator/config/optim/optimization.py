"""Optimizers and their schedulers: defaults from the task, and checks before there is a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hooks import Hook
from orchestrator.config.optim.optimizer import (
    OPTIMIZERS,
    OWN,
    check_optimizer,
    closure_problems,
    has_own_method,
    optimizer_with_defaults,
)
from orchestrator.config.optim.parameter_groups import rate_keys
from orchestrator.config.optim.schedule import (
    Schedule,
    Timeline,
    is_stepped,
    list_interval,
    scheduler_with_defaults,
    stepping_problems,
)
from orchestrator.config.optim.scheduler import explain_unused_rate
from orchestrator.config.sections.experiment import Component, Experiment
from orchestrator.config.text.source import with_value
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task, has_turns


def optimization_with_defaults(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with its optimizer and scheduler filled in, the task's own where none is written.

    Raises ConfigError.
    """
    if experiment.optimizers:
        return experiment
    keys, problems = experiment.model_fields_set, list[Problem]()
    written = experiment.optimizer if "optimizer" in keys else Component()
    optimizer = collect_problems(problems, optimizer_with_defaults, written, task)
    has_own = "scheduler" not in keys and has_own_method(task, "scheduler")
    scheduler = Component() if has_own else experiment.scheduler
    scheduler = collect_problems(problems, scheduler_with_defaults, scheduler, task)
    if problems or optimizer is None:
        raise ConfigError(problems)
    if not written.type and optimizer.type != OWN and explain_unused_rate(optimizer, scheduler, ""):
        rest = {key: value for key, value in optimizer.model_dump().items() if key != "lr"}
        optimizer = Component.model_validate({**rest, **written.arguments})
    update = {"optimizer": optimizer, **({} if scheduler is experiment.scheduler else {"scheduler": scheduler})}
    return experiment.model_copy(update=update)


def with_stepping_interval(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with the interval at which the hook steps a list of schedulers, unless it is written."""
    every = collect_problems([], list_interval, list(experiment.optimizations.values()), task)
    entry = experiment.hooks.get("param_scheduler", True)
    if every is None or not (entry is True or (isinstance(entry, dict) and not {"every", "type"} & entry.keys())):
        return experiment
    hooks = with_value(experiment.hooks, "param_scheduler.every", str(every))
    return experiment.model_copy(update={"hooks": hooks})


def check_optimizations(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook], problems: list[Problem]
) -> None:
    """Check classes and arguments of optimizers and schedulers, and add the problems."""
    timeline = Timeline.of(hooks, experiment.epochs, experiment.steps)
    for optimization in experiment.optimizations.values():
        collect_problems(problems, check_optimizer, optimization, task)
        if optimization.scheduler and is_stepped(hooks):
            schedule = collect_problems(
                problems, Schedule.of, optimization.scheduler, task, timeline, optimization.scheduler_path
            )
            collect_problems(problems, schedule.check, task) if schedule else None


def optimization_problems(experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]) -> Iterator[Problem]:
    """Yield the conflicts between optimizers, schedulers, the task and the hooks."""
    optimizations = list(experiment.optimizations.values())
    if has_turns(task) and not experiment.optimizers:
        yield Problem("optimizers", f"is missing: {task.__name__}.turns() needs an optimizer for each of its parts")
    if experiment.optimizers and not has_turns(task):
        yield Problem("optimizers", f"has no effect: {task.__name__} defines no turns(), which uses several optimizers")
    if experiment.optimizers and experiment.optimizer != Experiment.model_fields["optimizer"].default:
        yield Problem("optimizer", "has no effect beside optimizers", suggestion="write it as one of them")
    if experiment.optimizers and experiment.scheduler is not None:
        yield Problem("scheduler", "has no effect beside optimizers", suggestion="write it below one of them")
    for optimization in optimizations:
        optimizer, path = optimization.optimizer, optimization.path
        if optimizer.type in OPTIMIZERS:
            yield from closure_problems(OPTIMIZERS[optimizer.type], experiment)
        if message := explain_unused_rate(optimizer, optimization.scheduler, optimization.scheduler_path):
            for key in rate_keys(optimizer.arguments):
                yield Problem(f"{path}.{key}", message, suggestion="remove one of them")
    # A scheduler that is written as null may be a sweep's other value.
    if any(optimization.scheduler for optimization in optimizations) or "scheduler" not in experiment.model_fields_set:
        yield from stepping_problems(optimizations, hooks, task)
