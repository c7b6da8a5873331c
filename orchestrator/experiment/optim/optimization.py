"""Optimizers and their schedulers: defaults from the task, and checks before there is a model."""

from collections.abc import Iterator, Mapping
from typing import Any

from hooks import HOOKS, Hook, ParamScheduler
from hooks.metrics.direction import declared_modes, direction
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.fields.parameters import make_signature_model
from orchestrator.experiment.optim.optimizer import (
    OPTIMIZERS,
    check_closure,
    check_optimizer,
    fill_optimizer_defaults,
    find_closure_class,
    has_own_method,
)
from orchestrator.experiment.optim.schedule import (
    RATES,
    SCHEDULERS,
    Schedule,
    Timeline,
    compute_list_interval,
    fill_scheduler_defaults,
    find_stepping_hook,
    needs_metric,
)
from orchestrator.experiment.sections.experiment import (
    FROM_TASK,
    Component,
    Experiment,
    Optimization,
)
from orchestrator.experiment.yaml.source import with_value
from orchestrator.task import Task, has_turns


def fill_optimization_defaults(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with its optimizer and scheduler, by default the task's own; may raise
    ConfigError."""
    if experiment.optimizers:
        return experiment
    keys, problems = experiment.model_fields_set, list[Problem]()
    written = experiment.optimizer if "optimizer" in keys else Component()
    optimizer = collect_problems(problems, fill_optimizer_defaults, written, task)
    has_own = "scheduler" not in keys and has_own_method(task, "scheduler")
    scheduler = Component() if has_own else experiment.scheduler
    scheduler = collect_problems(problems, fill_scheduler_defaults, scheduler, task)
    if problems or optimizer is None:
        raise ConfigError(problems)
    if not written.type and _explain_unused_rate(Optimization("", optimizer, scheduler)):
        rest = {key: value for key, value in optimizer.model_dump().items() if key != "lr"}
        optimizer = Component.model_validate({**rest, **written.arguments})
    update = {
        "optimizer": optimizer,
        **({} if scheduler is experiment.scheduler else {"scheduler": scheduler}),
    }
    return experiment.model_copy(update=update)


def with_stepping_interval(experiment: Experiment, task: type[Task]) -> Experiment:
    """Return the experiment with the interval at which the hook steps a list of schedulers, unless
    the file sets it."""
    every = collect_problems(
        [], compute_list_interval, list(experiment.optimizations.values()), task
    )
    entry = experiment.hooks.get("param_scheduler", True)
    if every is None or not (
        entry is True or (isinstance(entry, dict) and not {"every", "type"} & entry.keys())
    ):
        return experiment
    hooks = with_value(experiment.hooks, "param_scheduler.every", str(every))
    return experiment.model_copy(update={"hooks": hooks})


def check_optimizer_arguments(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook], problems: list[Problem]
) -> None:
    """Check classes and arguments of optimizers and schedulers, and add the problems."""
    timeline = Timeline.from_hooks(hooks, experiment.epochs, experiment.steps)
    for optimization in experiment.optimizations.values():
        collect_problems(problems, check_optimizer, optimization, task)
        if optimization.scheduler and _is_stepped(hooks):
            schedule = collect_problems(
                problems,
                Schedule.make,
                optimization.scheduler,
                task,
                timeline,
                optimization.scheduler_path,
            )
            for phase in schedule.phases if schedule else ():
                collect_problems(problems, phase.check, task)


def find_optimizer_conflicts(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    """Yield the conflicts between optimizers, schedulers, the task and the hooks."""
    optimizations = list(experiment.optimizations.values())
    if has_turns(task) and not experiment.optimizers:
        yield Problem(
            "optimizers",
            f"is missing: {task.__name__}.turns() needs an optimizer for each of its parts",
        )
    if experiment.optimizers and not has_turns(task):
        yield Problem("optimizers", f"needs a method {task.__name__}.turns()")
    if (
        experiment.optimizers
        and experiment.optimizer != Experiment.model_fields["optimizer"].default
    ):
        yield Problem(
            "optimizer", "cannot be combined with optimizers", suggestion="write it as one of them"
        )
    if experiment.optimizers and experiment.scheduler is not None:
        yield Problem(
            "scheduler", "cannot be combined with optimizers", suggestion="write it in one of them"
        )
    for optimization in optimizations:
        optimizer, path = optimization.optimizer, optimization.path
        if with_closure := find_closure_class(optimizer.type):
            yield from check_closure(with_closure, experiment)
        message = _explain_unused_rate(optimization)
        if message and "lr" in optimizer.arguments:
            yield Problem(f"{path}.lr", message, suggestion=f"{path}.lr=null removes it")
        yield from _check_momentum(optimization)
    # A null scheduler may be one of a sweep's values.
    if (
        any(optimization.scheduler for optimization in optimizations)
        or "scheduler" not in experiment.model_fields_set
    ):
        yield from _check_stepping(experiment, hooks, task)


def _explain_unused_rate(optimization: Optimization) -> str | None:
    """Return why the rate of one of torch's optimizers has no effect, if all its schedulers set the
    rate."""
    entries = list(optimization.schedulers.values())
    if not entries or optimization.optimizer.type in ("", FROM_TASK):
        return None
    if not all(RATES.get(entry.type) in entry.arguments for entry in entries):
        return None
    return f"has no effect with {entries[0].type}, whose {RATES[entries[0].type]} sets the learning rate"


def _check_momentum(optimization: Optimization) -> Iterator[Problem]:
    """Yield a problem for each of torch's schedulers that varies a momentum which the optimizer
    does not have."""
    kind = optimization.optimizer.type
    cls: Any = OPTIMIZERS.get(kind)
    if cls is None or {"momentum", "betas"} & make_signature_model(cls).model_fields.keys():
        return
    for path, entry in optimization.schedulers.items():
        if entry.type in ("CyclicLR", "OneCycleLR") and entry.arguments.get("cycle_momentum", True):
            yield Problem(
                f"{path}.cycle_momentum",
                f"must be false: {kind} has no momentum for {entry.type} to vary",
            )


def _is_stepped(hooks: Mapping[str, Hook]) -> bool:
    """Return whether a hook steps schedulers, or a custom hook may."""
    return find_stepping_hook(hooks) is not None or any(
        type(hook) not in HOOKS.values() for hook in hooks.values()
    )


def _check_stepping(
    experiment: Experiment, hooks: Mapping[str, Hook], task: type[Task]
) -> Iterator[Problem]:
    """Yield the problems of a scheduler that nothing steps, and of a hook with nothing to step or
    another interval."""
    optimizations = list(experiment.optimizations.values())
    scheduled = [optimization for optimization in optimizations if optimization.scheduler]
    hook = find_stepping_hook(hooks)
    if hook is None:
        if not _is_stepped(hooks):
            message = "has no effect: the hook param_scheduler, which steps it, is off"
            yield from (Problem(optimization.scheduler_path, message) for optimization in scheduled)
        return
    path = f"hooks.{next(name for name, other in hooks.items() if other is hook)}"
    if not scheduled:
        is_set = {"every": hook.every != ParamScheduler.every, "monitor": hook.monitor is not None}
        yield from (
            Problem(f"{path}.{key}", "has no effect without a scheduler")
            for key in is_set
            if is_set[key]
        )
        return
    if hook.every.count == 0:
        message = "must be at least 1 to step the scheduler, got 0; write scheduler: null for none"
        yield Problem(f"{path}.every", message)
        return
    for optimization in scheduled:
        yield from _check_monitor(optimization, hook, path, experiment)
    every = collect_problems([], compute_list_interval, optimizations, task)
    if every not in (None, hook.every):
        message = f"must be {every} for a list of schedulers, which have their own `every`; got {hook.every}"
        yield Problem(f"{path}.every", message, suggestion="remove it")


def _check_monitor(
    optimization: Optimization, hook: ParamScheduler, path: str, experiment: Experiment
) -> Iterator[Problem]:
    """Yield the problems of one of torch's schedulers with its metric: missing, unused, or in the
    wrong mode."""
    scheduler, entry_path = optimization.scheduler, optimization.scheduler_path
    if not isinstance(scheduler, Component) or scheduler.type not in SCHEDULERS:
        return
    is_metric_needed = needs_metric(scheduler, entry_path)
    if is_metric_needed and hook.monitor is None:
        yield Problem(
            entry_path, f"{scheduler.type} needs a metric; set {path}.monitor, such as val/loss"
        )
    if hook.monitor is not None and not is_metric_needed:
        yield Problem(
            f"{path}.monitor",
            f"has no effect: {scheduler.type} takes no metric, got '{hook.monitor}'",
        )
    if hook.monitor is not None and is_metric_needed:
        better = direction(hook.monitor, declared_modes(experiment.model_dump(mode="json")))
        mode = scheduler.arguments.get("mode", "min")
        if better not in (None, mode):
            reason = (
                f"{'higher' if better == 'max' else 'lower'} values of {hook.monitor} are better"
            )
            yield Problem(f"{entry_path}.mode", f"must be {better}, because {reason}; got {mode}")
