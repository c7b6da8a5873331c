"""Checks between schedulers and the hook that steps them, if there is one."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hooks import HOOKS, Hook, ParamScheduler
from hooks.metrics.direction import Mode
from orchestrator.errors import Problem
from orchestrator.experiment.optim.component import Component
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.scheduler import SCHEDULERS, needs_metric
from orchestrator.experiment.optim.scheduler_list import find_list_interval
from orchestrator.experiment.optim.timeline import find_stepping_hook
from orchestrator.task import Task


def is_stepped(hooks: Mapping[str, Hook]) -> bool:
    """Return whether a hook steps schedulers, or a custom hook may."""
    has_custom_hook = any(HOOKS.name_of(type(hook)) is None for hook in hooks.values())
    return has_custom_hook or find_stepping_hook(hooks) is not None


def find_stepping_problems(
    optimizations: Sequence[Optimization],
    hooks: Mapping[str, Hook],
    task: type[Task],
    find_mode: Callable[[str], Mode | None],
) -> Iterator[Problem]:
    """Yield the problems between schedulers and the hook that steps them.

    `find_mode` returns the direction of a metric, if known.
    """
    scheduled = [optimization for optimization in optimizations if optimization.scheduler]
    if not is_stepped(hooks):
        message = "has no effect: the hook param_scheduler, which steps it, is off"
        for optimization in scheduled:
            yield Problem(optimization.scheduler_path, message)
    hook = find_stepping_hook(hooks)
    if hook is None:
        return

    path, *others = [f"hooks.{name}" for name in hooks if isinstance(hooks[name], ParamScheduler)]
    for other in others:
        yield Problem(
            other, f"steps each scheduler a second time, after {path}; remove one of them"
        )
    if not scheduled:
        yield from _find_unused_settings(hook, path)
        return
    if hook.every.count == 0:
        rule = "must be at least 1 to step the scheduler, got 0"
        yield Problem(f"{path}.every", f"{rule}; write scheduler: null for none")
        return
    for optimization in scheduled:
        yield from _check_monitor(optimization, hook, path, find_mode)
    every = find_list_interval(optimizations, task)
    if every not in (None, hook.every):
        reason = "for a list of schedulers, which have their own `every`"
        message = f"must be {every} {reason}; got {hook.every}"
        yield Problem(f"{path}.every", message, suggestion="remove it")


def _find_unused_settings(hook: ParamScheduler, path: str) -> Iterator[Problem]:
    """Yield a problem for each setting of the hook, which steps no scheduler."""
    message = "has no effect without a scheduler"
    if hook.every != ParamScheduler.every:
        yield Problem(f"{path}.every", message)
    if hook.monitor is not None:
        yield Problem(f"{path}.monitor", message)


def _check_monitor(
    optimization: Optimization,
    hook: ParamScheduler,
    path: str,
    find_mode: Callable[[str], Mode | None],
) -> Iterator[Problem]:
    """Yield the problems of a scheduler's metric: missing, unused, or in the wrong mode."""
    scheduler = optimization.scheduler
    if not isinstance(scheduler, Component):
        return
    kind = scheduler.type
    is_of_torch = kind in SCHEDULERS
    entry_path = optimization.scheduler_path
    if not needs_metric(scheduler, entry_path):
        if is_of_torch and hook.monitor is not None:
            message = f"has no effect: {kind} takes no metric, got '{hook.monitor}'"
            yield Problem(f"{path}.monitor", message)
        return
    if hook.monitor is None:
        yield Problem(entry_path, f"{kind} needs a metric; set {path}.monitor, such as val/loss")
        return

    better = find_mode(hook.monitor)
    # Another class may have another default.
    default = "min" if is_of_torch else better
    mode = scheduler.arguments.get("mode", default)
    if better not in (None, mode):
        values = "higher values" if better == "max" else "lower values"
        reason = f"{values} of {hook.monitor} are better"
        yield Problem(f"{entry_path}.mode", f"must be {better}, because {reason}; got {mode}")
