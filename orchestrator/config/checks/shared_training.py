"""Which paths of a sweep's space change only hooks that observe, so that trials can share one training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hooks import HOOKS, Hook, ParamScheduler
from hooks.metrics.names import phase_of
from orchestrator.config.checks.space import surroundings
from orchestrator.config.components import PLAN_KEYS
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.config.sections.sweep import Fifo, HyperBand, Population, Race, Sweep
from orchestrator.config.text.reader import join
from orchestrator.config.text.source import ExperimentSource
from orchestrator.errors import ConfigError, Problem
from orchestrator.task import trains_itself

_IN_TRAINING_ALONE = frozenset(
    ("on_load", "on_start", "on_backward", "on_gradients", "on_update", "on_end", "on_exception")
)
"""Events that do not depend on how often a run validates or saves, or what comes of that."""


@dataclass(frozen=True)
class SharedPaths:
    """Paths whose values can share one training, and why the others cannot."""

    paths: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Path of a hook's to why it does not; the empty path is that of all."""

    def together(self, trials: Sequence[tuple[int, Mapping[str, Any]]]) -> list[list[int]]:
        """The numbers of trials, by number and values, that share one training each, the leader's first."""
        groups: dict[str, list[int]] = {}
        for number, values in trials:
            rest = {path: value for path, value in values.items() if path not in self.paths}
            groups.setdefault(json.dumps(rest, sort_keys=True) if self.paths else str(number), []).append(number)
        return list(groups.values())


def shared_paths(source: ExperimentSource, sweep: Sweep) -> SharedPaths:
    """Return the paths of a sweep that can share a training. Imports the task and the hooks.

    `source` is the sweep's, or that of the experiment below it.
    """
    swept = [path for path in sweep.space if path.startswith("hooks.")]
    if not swept:
        return SharedPaths()
    reason = _of_the_sweep(sweep)
    if reason:
        return SharedPaths((), {"": reason})
    tried = [_tried(source.without_sweep(), sweep, path) for path in swept]
    one_by_one = _one_by_one(sweep)
    reasons = {path: one_by_one if one_by_one and sweep.space[path].kind != "fan_out" else "" for path in swept}
    reasons = {
        path: reasons[path] or next(filter(None, (_why_not(path, sweep, one) for one in some)), "")
        for path, some in zip(swept, tried, strict=True)
    }
    paths = tuple(path for path in swept if not reasons[path])
    reason = next((why for some in tried for one in some for why in _of_the_training(one)), "")
    if paths and reason:
        return SharedPaths((), {"": reason})
    return SharedPaths(paths, {path: why for path, why in reasons.items() if why})


def unshareable_paths(source: ExperimentSource, sweep: Sweep) -> Iterator[Problem]:
    """Yield a problem for each `fan_out` path that cannot share a training, and for `share_training` without effect."""
    if not sweep.share_training and not any(path.startswith("hooks.") for path in sweep.space):
        yield Problem(
            "sweep.share_training",
            "has no effect: the space has no path of a hook, so no trials can share a training; remove it",
        )
    asked = [path for path, domain in sweep.space.items() if domain.kind == "fan_out"]
    found = shared_paths(source, sweep) if asked else SharedPaths()
    for path in asked:
        if path not in found.paths:
            reason = found.reasons.get("") or found.reasons.get(path) or "only hooks observe"
            instead = "choice" if sweep.search == "optuna" else "grid"
            yield Problem(join("sweep.space", f"{path}.fan_out"), f"cannot share a training: {reason}; write {instead}")


def _of_the_sweep(sweep: Sweep) -> str:
    """Why no trials of a sweep share a training, as far as its own settings tell."""
    if not sweep.share_training:
        return "share_training: false"
    if sweep.engine == "train":
        return "engine: train makes each trial a job of its own"
    if isinstance(sweep.scheduler, Population):
        return f"scheduler: {sweep.scheduler.type} has trials take over weights and values of others"
    if isinstance(sweep.scheduler, HyperBand):
        return (
            "scheduler: hyperband has each trial pause until others of its bracket have come as far, and a training"
            " cannot go on for some of its trials alone"
        )
    if isinstance(sweep.scheduler, Race):
        return "scheduler: race begins the trials of each configuration one after the other"
    if len(sweep.metrics) > 1:
        return (
            "of several metrics none of the trials on a training is the best, by which search: optuna would judge the"
            " draw"
        )
    return ""


def _one_by_one(sweep: Sweep) -> str:
    """Return why trials share a training only along `fan_out` paths."""
    if sweep.search == "optuna":
        reason = "search: optuna chooses each trial by what those before have reached"
    elif isinstance(sweep.scheduler, Fifo):
        return ""
    else:
        reason = f"scheduler: {sweep.scheduler.type} ends trials one by one, by what the others reached"
    return f"{reason}; with fan_out: [...], all values of the list share one training"


def _tried(source: ExperimentSource, sweep: Sweep, path: str) -> list[ResolvedExperiment]:
    """The experiment with each value of a path, beside one value of each path that decides what it means."""
    found = []
    for around in surroundings(path, sweep.space):
        for value in sweep.space[path].candidates():
            try:
                found.append(resolve(source.with_values({**around, path: value})))
            except ConfigError:  # does not go together: such a trial fails as it begins
                continue
    return found


def _why_not(path: str, sweep: Sweep, resolved: ResolvedExperiment) -> str:
    _, name, *rest = path.split(".")
    if rest and rest[0] in PLAN_KEYS:
        return f"it says what hooks.{name} is, or when it is called"
    if any(path != other and other.startswith(f"hooks.{name}.type") for other in sweep.space):
        return f"hooks.{name}.type is swept too"
    hook = resolved.hooks.get(name)
    return f"hooks.{name} ({type(hook).__name__}) does not say that it observes" if hook and not hook.observes else ""


def _of_the_training(resolved: ResolvedExperiment) -> Iterator[str]:
    """What in a training may depend on what followers change."""
    if resolved.experiment.changes:
        yield "changes gives hooks and optimizer other values while training goes on"
    if trains_itself(type(resolved.task)):
        yield f"{type(resolved.task).__name__} trains by itself, in train()"
    if resolved.experiment.accumulate == "auto":
        yield "accumulate: auto cuts batches by the memory there is, of which the hooks of followers take some"
    for name, hook in resolved.hooks.items():
        if hook.observes:
            continue
        if isinstance(hook, ParamScheduler):
            monitor = hook.monitor
            if monitor and phase_of(monitor) != "train":
                yield f"hooks.{name} steps the scheduler by {monitor}, which is each trial's own"
        elif type(hook) not in HOOKS.values() and (heard := _heard(hook)):
            yield (
                f"hooks.{name} ({type(hook).__name__}) does not say that it observes, and in {heard} it may act on what"
                " is each trial's own; write observes: ClassVar[bool] = True into it where training and its rows are"
                " the same without it"
            )


def _heard(hook: Hook) -> str:
    from hooks import EVENTS

    return next((event for event in EVENTS if event not in _IN_TRAINING_ALONE and hook.handles(event)), "")
