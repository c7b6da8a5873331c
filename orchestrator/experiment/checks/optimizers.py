"""Checks of the optimizers and schedulers of an experiment: their arguments, and conflicts."""

from collections.abc import Iterator, Mapping

from torch.optim import Optimizer

from hooks import Hook
from hooks.metrics.direction import Mode, find_direction
from hooks.metrics.monitored import find_declared_modes
from hooks.setup import Setup
from orchestrator.errors import Problem, find_problems, raise_problems
from orchestrator.experiment.optim.closures import find_closure_class, needs_closure
from orchestrator.experiment.optim.component import DEFAULT_OPTIMIZER
from orchestrator.experiment.optim.learning_rate import Schedule
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.optimizer import check_optimizer
from orchestrator.experiment.optim.scheduler_conflicts import (
    find_missing_momentum,
    find_unused_momentum,
    find_unused_rate,
)
from orchestrator.experiment.optim.stepping import find_stepping_problems, is_stepped
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task, has_turns


def check_optimizer_arguments(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    """Yield the problems of classes and arguments of optimizers and schedulers."""
    timeline = Timeline.from_hooks(hooks, experiment.epochs, experiment.steps)
    for optimization in list_optimizations(experiment).values():
        yield from find_problems(check_optimizer, optimization, task)
        if optimization.scheduler and is_stepped(hooks):
            yield from find_problems(_check_schedule, optimization, task, timeline)


def _check_schedule(optimization: Optimization, task: type[Task], timeline: Timeline) -> None:
    """Raise ConfigError with the problems of each scheduler of an optimizer."""
    schedule = Schedule.make(optimization, task, timeline)
    problems: list[Problem] = []
    for phase in schedule.phases:
        problems += find_problems(phase.check, task)
    raise_problems(problems)


# Conflicts


def find_optimizer_conflicts(
    experiment: Experiment,
    task: type[Task],
    hooks: Mapping[str, Hook],
    meter_modes: Mapping[str, Mode],
) -> Iterator[Problem]:
    """Yield the conflicts between optimizers, schedulers, the task and the hooks."""
    yield from _check_number(experiment, task)
    optimizations = list(list_optimizations(experiment).values())
    for optimization in optimizations:
        cls = find_closure_class(optimization.optimizer.type)
        if cls:
            yield from check_closure(cls, experiment)
        yield from find_unused_rate(optimization)
        yield from find_unused_momentum(optimization)
        yield from find_missing_momentum(optimization)
    # A null scheduler may be one of a sweep's values.
    has_scheduler = any(optimization.scheduler for optimization in optimizations)
    if has_scheduler or "scheduler" not in experiment.model_fields_set:
        declared = find_declared_modes(experiment.model_dump(mode="json"))

        def find_mode(metric: str) -> Mode | None:
            return find_direction(metric, declared, meter_modes)

        yield from find_stepping_problems(optimizations, hooks, task, find_mode)


def _check_number(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of one optimizer or several that do not fit the task."""
    if not experiment.optimizers:
        if has_turns(task):
            yield Problem(
                "optimizers",
                f"is missing: {task.__name__}.turns() needs an optimizer for each of its parts",
            )
        return
    if not has_turns(task):
        yield Problem("optimizers", f"needs a method {task.__name__}.turns()")
    message = "cannot be combined with optimizers"
    if experiment.optimizer != DEFAULT_OPTIMIZER:
        yield Problem("optimizer", message, suggestion="write it as one of them")
    if experiment.scheduler is not None:
        yield Problem("scheduler", message, suggestion="write it in one of them")


def check_closure(
    cls: type[Optimizer], experiment: Experiment, hooks: Mapping[str, Hook] | None = None
) -> Iterator[Problem]:
    """Yield the problems of settings that exclude an optimizer which needs a closure."""
    if not needs_closure(cls):
        return
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
    for path, reason in reasons.items():
        if reason:
            yield Problem(path, reason)
