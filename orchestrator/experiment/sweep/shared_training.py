"""Paths of a sweep's space whose values can share one training run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.make_hooks import PLAN_KEYS
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.experiment.sections.schedulers.fifo import Fifo
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import choose_context
from orchestrator.experiment.sweep.training_dependence import explain_hook, explain_training
from orchestrator.experiment.yaml.source import ExperimentSource


@dataclass(frozen=True)
class SharedPaths:
    """Paths whose values can share one training run, and why the others cannot."""

    paths: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason by path."""
    reason_for_all: str | None = None
    """Why no path can; None if some can, or if each has its own reason."""

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
class ValueReasons:
    """Why the values of swept paths exclude a shared training run, whatever the sweep's settings."""

    by_path: dict[str, str] = field(default_factory=dict)
    """Why trials cannot differ in the hook of a path."""
    training: str | None = None
    """Why the training may depend on what differs between its trials; None if it does not."""

    def add(self, path: str, resolved: ResolvedExperiment) -> None:
        """Add the reasons of the experiment with one of the values of a path."""
        if not _is_of_hook(path):
            return
        name = path.split(".")[1]
        reason = explain_hook(name, resolved.hooks.get(name))
        if reason is not None:
            self.by_path.setdefault(path, reason)
        if self.training is None:
            self.training = explain_training(resolved)


def find_shared_paths(source: ExperimentSource, sweep: SweepSettings) -> SharedPaths:
    """Return the paths that can share a training run."""
    reasons = ValueReasons()
    if _explain_sweep(sweep) is None:
        for path in _list_hook_paths(sweep):
            for resolved in _resolve_each(source.without_sweep(), sweep, path):
                reasons.add(path, resolved)
    return _judge_paths(sweep, reasons)


def _is_of_hook(path: str) -> bool:
    return path.startswith("hooks.")


def _list_hook_paths(sweep: SweepSettings) -> list[str]:
    return [path for path in sweep.space if _is_of_hook(path)]


def _judge_paths(sweep: SweepSettings, values: ValueReasons) -> SharedPaths:
    """Return the paths that can share a training run, by the reasons of their values."""
    swept = _list_hook_paths(sweep)
    if not swept:
        return SharedPaths()
    reason_for_all = _explain_sweep(sweep)
    if reason_for_all is not None:
        return SharedPaths(reason_for_all=reason_for_all)

    reasons = {}
    for path in swept:
        reason = _explain_path(path, sweep) or values.by_path.get(path)
        if reason is not None:
            reasons[path] = reason
    paths = tuple(path for path in swept if path not in reasons)
    if paths and values.training is not None:
        return SharedPaths(reason_for_all=values.training)
    return SharedPaths(paths, reasons)


def find_unshareable_paths(sweep: SweepSettings, values: ValueReasons) -> Iterator[Problem]:
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


def _explain_sweep(sweep: SweepSettings) -> str | None:
    """Return why no trials of a sweep can share a training run; None if some can."""
    if not sweep.share_training:
        return "share_training is false"
    if sweep.engine == "train":
        return "engine: train starts a job for each trial"
    if sweep.scheduler.unshareable is not None:
        return sweep.scheduler.unshareable
    if len(sweep.metrics) > 1:
        return "several metrics have no single best trial"
    return None


def _explain_fan_out_only(sweep: SweepSettings) -> str | None:
    """Return why only `fan_out` values can share a training run; None if others can too."""
    if sweep.search.type == "optuna":
        reason = "optuna learns from each trial"
    elif isinstance(sweep.scheduler, Fifo):
        return None
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


def _explain_path(path: str, sweep: SweepSettings) -> str | None:
    """Return why a path cannot share a training run, whatever its values; None if it can."""
    fan_out_only = _explain_fan_out_only(sweep)
    if fan_out_only is not None and sweep.space[path].kind != "fan_out":
        return fan_out_only

    _, name, *keys = path.split(".")
    if keys and keys[0] in PLAN_KEYS:
        return f"{keys[0]} sets the class of hooks.{name} or its order among the hooks"
    if f"hooks.{name}.type" in sweep.space:
        return f"hooks.{name}.type is swept too"
    return None
