"""Defaults of the optimizer and the scheduler: those of the task's own methods, or SGD."""

from typing import Any

from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.optim.component import (
    DEFAULT_OPTIMIZER,
    FROM_TASK,
    Component,
    LRSchedulers,
)
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.scheduler import split_arguments
from orchestrator.experiment.optim.scheduler_conflicts import find_rate_setter
from orchestrator.experiment.optim.scheduler_keys import PhaseBounds, WarmUp
from orchestrator.experiment.optim.scheduler_list import find_list_interval
from orchestrator.experiment.optim.step_counts import LENGTHS, add_length
from orchestrator.experiment.optim.task_factories import fill_method_defaults, has_own_method
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.dotted_paths import with_value
from orchestrator.task import Task


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
    optimizer = collect_problems(problems, _fill_optimizer, written, task)
    scheduler = collect_problems(problems, _fill_schedulers, scheduler, task)
    if problems or optimizer is None:
        raise ConfigError(problems)

    # The default rate gives way to a scheduler that sets the rate; a written one is a conflict.
    if not written.type and find_rate_setter(Optimization(None, optimizer, scheduler)):
        rest = {key: value for key, value in optimizer.model_dump().items() if key != "lr"}
        optimizer = Component.model_validate({**rest, **written.arguments})
    update: dict[str, Any] = {"optimizer": optimizer}
    if scheduler is not experiment.scheduler:
        update["scheduler"] = scheduler
    return experiment.with_valid_values(**update)


def _fill_optimizer(optimizer: Component, task: type[Task]) -> Component:
    """Return the optimizer with its `type` and defaults; without `type`, the task's own or SGD.

    Raises ConfigError.
    """
    if optimizer.type == FROM_TASK or (not optimizer.type and has_own_method(task, "optimizer")):
        filled = fill_method_defaults(optimizer.arguments, task, "optimizer", "optimizer")
        return Component.model_validate(filled)
    if optimizer.type:
        return optimizer
    # With the type of a class of torch, a component drops its nulls.
    written = Component(type=DEFAULT_OPTIMIZER.type, **optimizer.arguments)
    return Component.model_validate({**DEFAULT_OPTIMIZER.model_dump(), **written.arguments})


def _fill_schedulers(scheduler: LRSchedulers | None, task: type[Task]) -> LRSchedulers | None:
    """Return schedulers with their `type` and defaults; without `type`, the task's own.

    Raises ConfigError.
    """
    if scheduler is None:
        return None
    if isinstance(scheduler, list):
        return [
            _fill_scheduler(entry, task, PhaseBounds, f"scheduler.{index}")
            for index, entry in enumerate(scheduler)
        ]
    return _fill_scheduler(scheduler, task, WarmUp, "scheduler")


def _fill_scheduler(
    scheduler: Component, task: type[Task], keys: type[Model], path: str
) -> Component:
    """Return a scheduler with `keys` beside its arguments, which get the defaults of the task's
    method if that makes the scheduler."""
    if scheduler.type != FROM_TASK and (scheduler.type or not has_own_method(task, "scheduler")):
        return scheduler
    own = scheduler.model_copy(update={"type": FROM_TASK})
    arguments, extra = split_arguments(own, task, keys, path)
    complete = add_length(FROM_TASK, arguments, task, 1, path)
    filled = fill_method_defaults(complete, task, "scheduler", path)
    for name in LENGTHS:
        if arguments.get(name) is None:
            filled.pop(name, None)  # the length is that of the run
    return Component.model_validate({**filled, **extra})


def with_stepping_interval(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with the hook's interval for a list of schedulers, unless set."""
    optimizations = list(list_optimizations(experiment).values())
    every = find_list_interval(optimizations, task)
    entry = experiment.hooks.get("param_scheduler", True)
    is_open = isinstance(entry, dict) and not {"every", "type"} & entry.keys()
    if every is None or not (entry is True or is_open):
        return experiment
    hooks = with_value(experiment.hooks, "param_scheduler.every", str(every))
    return experiment.with_valid_values(hooks=hooks)
