"""Optimizers and schedulers of an experiment: defaults, arguments, and conflicts."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

from hooks import Hook
from hooks.metrics.direction import Mode, declared_modes, direction
from hooks.setup import Setup
from orchestrator.errors import (
    ConfigError,
    Problem,
    collect_problems,
    find_problems,
    raise_problems,
)
from orchestrator.experiment.optim.closures import find_closure_class, needs_closure
from orchestrator.experiment.optim.component import (
    DEFAULT_OPTIMIZER,
    Component,
    Optimization,
)
from orchestrator.experiment.optim.construction import has_own_method
from orchestrator.experiment.optim.learning_rate import Schedule
from orchestrator.experiment.optim.optimizer import (
    check_optimizer,
    fill_optimizer_defaults,
)
from orchestrator.experiment.optim.schedule_phases import find_list_interval
from orchestrator.experiment.optim.scheduler import (
    fill_scheduler_defaults,
    find_missing_momentum,
    find_unused_rate,
)
from orchestrator.experiment.optim.stepping import find_stepping_problems, is_stepped
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.source import with_value
from orchestrator.task import Task, has_turns

# Defaults


def fill_optimization_defaults(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with its optimizer and scheduler, by default the task's own.

    Raises ConfigError.
    """
    if experiment.optimizers:
        return experiment
    written_keys = experiment.model_fields_set
    written = experiment.optimizer if "optimizer" in written_keys else Component()
    scheduler = experiment.scheduler
    if "scheduler" not in written_keys and has_own_method(task, "scheduler"):
        scheduler = Component()

    problems: list[Problem] = []
    optimizer = collect_problems(problems, fill_optimizer_defaults, written, task)
    scheduler = collect_problems(problems, fill_scheduler_defaults, scheduler, task)
    if problems or optimizer is None:
        raise ConfigError(problems)

    if not written.type and any(find_unused_rate(Optimization("", optimizer, scheduler))):
        rest = {key: value for key, value in optimizer.model_dump().items() if key != "lr"}
        optimizer = Component.model_validate({**rest, **written.arguments})
    update: dict[str, Any] = {"optimizer": optimizer}
    if scheduler is not experiment.scheduler:
        update["scheduler"] = scheduler
    return experiment.model_copy(update=update)


def with_stepping_interval(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with the hook's interval for a list of schedulers, unless set."""
    optimizations = list(experiment.optimizations.values())
    every = find_list_interval(optimizations, task)
    entry = experiment.hooks.get("param_scheduler", True)
    is_open = isinstance(entry, dict) and not {"every", "type"} & entry.keys()
    if every is None or not (entry is True or is_open):
        return experiment
    hooks = with_value(experiment.hooks, "param_scheduler.every", str(every))
    return experiment.model_copy(update={"hooks": hooks})


# Arguments


def check_optimizer_arguments(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    """Yield the problems of classes and arguments of optimizers and schedulers."""
    timeline = Timeline.from_hooks(hooks, experiment.epochs, experiment.steps)
    for optimization in experiment.optimizations.values():
        yield from find_problems(check_optimizer, optimization, task)
        if optimization.scheduler and is_stepped(hooks):
            yield from find_problems(_check_schedule, optimization, task, timeline)


def _check_schedule(optimization: Optimization, task: type[Task], timeline: Timeline) -> None:
    schedule = Schedule.make(optimization, task, timeline)
    raise_problems(
        problem for phase in schedule.phases for problem in find_problems(phase.check, task)
    )


# Conflicts


def find_optimizer_conflicts(
    experiment: Experiment,
    task: type[Task],
    hooks: Mapping[str, Hook],
    meter_modes: Mapping[str, Mode],
) -> Iterator[Problem]:
    """Yield the conflicts between optimizers, schedulers, the task and the hooks."""
    yield from _check_number(experiment, task)
    optimizations = list(experiment.optimizations.values())
    for optimization in optimizations:
        cls = find_closure_class(optimization.optimizer.type)
        if cls:
            yield from check_closure(cls, experiment)
        yield from find_unused_rate(optimization)
        yield from find_missing_momentum(optimization)
    # A null scheduler may be one of a sweep's values.
    has_scheduler = any(optimization.scheduler for optimization in optimizations)
    if has_scheduler or "scheduler" not in experiment.model_fields_set:
        declared = declared_modes(experiment.model_dump(mode="json"))

        def find_mode(metric: str) -> Mode | None:
            return direction(metric, declared, meter_modes)

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
