"""Paths of a sweep's space whose values can share one training run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hooks import EVENTS, HOOKS, Checkpoint, Hook, ParamScheduler, PreciseBatchNorm
from hooks.metrics.names import find_phase
from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.make_hooks import PLAN_KEYS
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.schedulers.fifo import Fifo
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import choose_context
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.task import has_custom_loop

_INDEPENDENT_EVENTS = (
    "on_load",
    "on_start",
    "on_backward",
    "on_gradients",
    "on_update",
    "on_end",
    "on_exception",
)
"""Events that do not depend on how often a run validates or saves, or on the results."""


@dataclass(frozen=True)
class SharedPaths:
    """Paths whose values can share one training run, and why the others cannot."""

    paths: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason by path."""
    reason_for_all: str = ""
    """Why no path can; empty if some can, or if each has its own reason."""

    def group_trials(self, trials: Sequence[tuple[int, Mapping[str, Any]]]) -> list[list[int]]:
        """Group trials, given as number and values, by shared training run; the first one leads."""
        groups: dict[str, list[int]] = {}
        for number, values in trials:
            key = str(number)
            if self.paths:
                rest = {path: value for path, value in values.items() if path not in self.paths}
                key = json.dumps(rest, sort_keys=True)
            groups.setdefault(key, []).append(number)
        return list(groups.values())


@dataclass
class SharingReasons:
    """Why trials that differ in the values of a swept path cannot share a training run."""

    by_path: dict[str, str] = field(default_factory=dict)
    """Why the hook of a path excludes it; empty if it does not."""
    training: str = ""
    """Why the training may depend on what differs between its trials; empty if it does not."""

    def add(self, path: str, resolved: ResolvedExperiment) -> None:
        """Add the reasons of the experiment with one of the values of a path."""
        if not path.startswith("hooks."):
            return
        name = path.split(".")[1]
        reason = _explain_hook(name, resolved.hooks.get(name))
        self.by_path[path] = self.by_path.get(path) or reason
        self.training = self.training or _explain_training(resolved)


def find_shared_paths(source: ExperimentSource, sweep: SweepSettings) -> SharedPaths:
    """Return the paths that can share a training run."""
    reasons = SharingReasons()
    if not _explain_sweep(sweep):
        for path in _list_hook_paths(sweep):
            for resolved in _resolve_each(source.without_sweep(), sweep, path):
                reasons.add(path, resolved)
    return _judge_paths(sweep, reasons)


def _list_hook_paths(sweep: SweepSettings) -> list[str]:
    return [path for path in sweep.space if path.startswith("hooks.")]


def _judge_paths(sweep: SweepSettings, values: SharingReasons) -> SharedPaths:
    """Return the paths that can share a training run, by the reasons of their values."""
    swept = _list_hook_paths(sweep)
    if not swept:
        return SharedPaths()
    reason_for_all = _explain_sweep(sweep)
    if reason_for_all:
        return SharedPaths(reason_for_all=reason_for_all)

    explained = {path: _explain_path(path, sweep) or values.by_path.get(path, "") for path in swept}
    reasons = {path: reason for path, reason in explained.items() if reason}
    paths = tuple(path for path in swept if path not in reasons)
    if paths and values.training:
        return SharedPaths(reason_for_all=values.training)
    return SharedPaths(paths, reasons)


def find_unshareable_paths(sweep: SweepSettings, values: SharingReasons) -> Iterator[Problem]:
    """Yield a problem for each `fan_out` path that cannot share a training run.

    A `share_training` without effect is a problem too.
    """
    if not sweep.share_training and not _list_hook_paths(sweep):
        yield Problem(
            "sweep.share_training", "has no effect: the space has no path of a hook; remove it"
        )
    shared = _judge_paths(sweep, values)
    other_kind = "choice" if sweep.search.type == "optuna" else "grid"
    for path, domain in sweep.space.items():
        if domain.kind != "fan_out" or path in shared.paths:
            continue
        reason = shared.reasons.get(path) or shared.reason_for_all
        reason = reason or "only parameters of observing hooks can"
        yield Problem(
            f"sweep.space.{path}.fan_out",
            f"cannot train once for all values: {reason}",
            suggestion=f"use {other_kind} instead of fan_out",
        )


def _explain_sweep(sweep: SweepSettings) -> str:
    """Return why no trials of a sweep can share a training run; empty if some can."""
    if not sweep.share_training:
        return "share_training is false"
    if sweep.engine == "train":
        return "engine: train starts a job for each trial"
    if sweep.scheduler.unshareable:
        return sweep.scheduler.unshareable
    if len(sweep.metrics) > 1:
        return "several metrics have no single best trial"
    return ""


def _explain_fan_out_only(sweep: SweepSettings) -> str:
    """Return why only `fan_out` values can share a training run; empty if others can too."""
    if sweep.search.type == "optuna":
        reason = "optuna learns from each trial"
    elif isinstance(sweep.scheduler, Fifo):
        return ""
    else:
        reason = f"{sweep.scheduler.type} stops each trial on its own"
    return f"{reason}; use fan_out: [...] to train all values in one run"


def _resolve_each(
    source: ExperimentSource, sweep: SweepSettings, path: str
) -> Iterator[ResolvedExperiment]:
    """Yield the experiment with each valid value of a path."""
    values_around = choose_context(path, sweep.space)
    for value in sweep.space[path].list_candidates():
        try:
            yield resolve(source.with_values({**values_around, path: value}))
        except ConfigError:
            continue


def _explain_path(path: str, sweep: SweepSettings) -> str:
    """Return why a path cannot share a training run, whatever its values; empty if it can."""
    fan_out_only = _explain_fan_out_only(sweep)
    if fan_out_only and sweep.space[path].kind != "fan_out":
        return fan_out_only

    _, name, *keys = path.split(".")
    if keys and keys[0] in PLAN_KEYS:
        return f"{keys[0]} sets the class of hooks.{name} or its order among the hooks"
    if f"hooks.{name}.type" in sweep.space:
        return f"hooks.{name}.type is swept too"
    return ""


def _explain_hook(name: str, hook: Hook | None) -> str:
    """Return why trials that differ in a hook cannot share a training run; empty if they can."""
    if hook is None:
        return ""
    if isinstance(hook, Checkpoint) and hook.weights == "trainable":
        return f"the checkpoints of hooks.{name} have only the trainable weights"
    if not hook.observes:
        return f"hooks.{name} does not declare `observes`"
    return ""


def _explain_training(resolved: ResolvedExperiment) -> str:
    """Return why a training may depend on what differs between its trials; empty if it does not."""
    reason = _explain_settings(resolved)
    if reason:
        return reason
    averages = [
        name for name, hook in resolved.hooks.items() if hook.observes and hook.keeps_record
    ]
    for name, hook in resolved.hooks.items():
        effect = _explain_effect(name, hook, averages)
        if effect:
            return effect
    return ""


def _explain_settings(resolved: ResolvedExperiment) -> str:
    """Return why the settings or the task exclude a shared training; empty if they do not."""
    if resolved.experiment.changes:
        return "changes sets values of hooks and the optimizer during training"
    if has_custom_loop(type(resolved.task)):
        return f"{type(resolved.task).__name__} trains in its own train()"
    if resolved.experiment.accumulate == "auto":
        return "accumulate: auto depends on free memory"
    return ""


def _explain_effect(name: str, hook: Hook, averages: Sequence[str]) -> str:
    """Return how a hook may affect training in a way that differs between trials; `averages` are the
    names of hooks that average weights."""
    if hook.observes:
        return ""
    if isinstance(hook, PreciseBatchNorm):
        if not averages:
            return ""
        weights = f"the weights of hooks.{averages[0]}, which may differ between trials"
        return f"hooks.{name} takes statistics of {weights}"
    if isinstance(hook, ParamScheduler):
        if not hook.monitor or find_phase(hook.monitor) == "train":
            return ""
        return f"hooks.{name} steps the scheduler by {hook.monitor}, which differs between trials"
    if HOOKS.name_of(type(hook)):
        return ""

    dependent = [event for event in EVENTS if event not in _INDEPENDENT_EVENTS]
    handled = [event for event in dependent if hook.handles(event)]
    if not handled:
        return ""
    declaration = f"`observes: ClassVar[bool] = True` in {type(hook).__name__}"
    effect = f"may affect training in {handled[0]}"
    return f"hooks.{name} {effect}; if it does not, declare {declaration}"
