"""Conflicts between the parts of an experiment, each of which is valid on its own."""

from collections.abc import Iterator, Mapping
from typing import Literal

from hooks import Hook
from hooks.metrics.direction import Mode
from hooks.setup import Setup
from hooks.suitability import find_reason_against
from orchestrator.errors import ConfigError, Problem, find_problems
from orchestrator.experiment.checks.changes import check_changes
from orchestrator.experiment.checks.metric_modes import find_contradicting_modes
from orchestrator.experiment.checks.metrics import check_metrics
from orchestrator.experiment.checks.optimizers import find_optimizer_conflicts
from orchestrator.experiment.checks.strategy import find_strategy_conflicts
from orchestrator.experiment.checks.train_method import check_train_method
from orchestrator.experiment.fields.needs import check_needs
from orchestrator.experiment.optim.closures import find_closure_class
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task, has_custom_loop, has_turns
from orchestrator.user_code.failures import catch_user_errors


def find_conflicts(
    experiment: Experiment,
    task: Task,
    hooks: Mapping[str, Hook],
    meter_modes: Mapping[str, Mode],
) -> Iterator[Problem]:
    """Yield the conflicts between the sections of an experiment, its task and its hooks.

    `meter_modes` has `max` or `min` for each meter of the task that says which is better.
    """
    cls = type(task)
    yield from find_contradicting_modes(experiment.model_dump(mode="json"))
    if has_custom_loop(cls):
        yield from check_train_method(experiment, cls)
    else:
        yield from check_needs(experiment, experiment)
        yield from find_strategy_conflicts(experiment, cls)
        yield from find_optimizer_conflicts(experiment, cls, hooks, meter_modes)
        yield from check_changes(experiment, cls)
        if experiment.cudnn_benchmark and experiment.deterministic:
            yield Problem(
                "cudnn_benchmark",
                "cannot be combined with deterministic: the fastest algorithm may differ",
            )
    yield from check_metrics(experiment, task, hooks)
    yield from _check_hooks(experiment, cls, hooks)


def _check_hooks(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    workers = experiment.workers
    is_sharded = workers.strategy == "fsdp" and workers.count != 1
    strategy: Literal["ddp", "fsdp"] = "fsdp" if is_sharded else "ddp"
    setup = Setup(
        strategy=strategy,
        custom_loop=has_custom_loop(task),
        several_optimizers=has_turns(task),
        splits_batches=experiment.accumulate == "auto",
        closure=find_closure_class(experiment.optimizer.type) is not None,
        hooks=hooks,
    )
    for name, hook in hooks.items():
        yield from find_problems(_check_hook, f"hooks.{name}", hook, setup)


def _check_hook(path: str, hook: Hook, setup: Setup) -> None:
    """Raise ConfigError if a hook cannot work in a setup."""
    with catch_user_errors(path, f"{type(hook).__name__}.unsuitable() failed"):
        reason = find_reason_against(hook, setup)
    if reason:
        raise ConfigError.at(path, reason)
