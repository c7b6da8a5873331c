"""From what was written to objects: classes found, everything filled in, checked and built, once. In every process that
needs an experiment: the driver, a worker, a trial's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hooks import Hook
from hooks.parts.import_path import extend_import_path
from hooks.parts.metric_direction import Judge, declared_modes, direction, judges
from orchestrator.config.changes import change_problems
from orchestrator.config.components import MadeHook, check_optimizer, make_hooks, make_task
from orchestrator.config.experiment import Component, Experiment, wrong_length
from orchestrator.config.other_systems import EXPERIMENT
from orchestrator.config.parameters import check
from orchestrator.config.source import ExperimentSource, with_value
from orchestrator.config.sweep import Sweep
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment in full, and what it is trained with."""

    experiment: Experiment
    """With every default filled in."""
    task: Task
    hooks: dict[str, Hook]
    """By name, in order, without those switched off."""


def resolve(source: ExperimentSource) -> ResolvedExperiment:
    """What a source says in full, its task and hooks built; raises ConfigError with every problem. Of a sweep that is the
    experiment below it; whether its space fits is for `load`."""
    extend_import_path(source.import_paths)
    data, problems = source.merged()
    resolved = collect_problems(problems, build, data)
    if problems or resolved is None:
        raise ConfigError(problems)
    resolved.experiment._source, resolved.experiment._is_resolved = source, True
    return resolved


def build(data: Mapping[str, Any]) -> ResolvedExperiment:
    """As `resolve`, for data whose classes can be found."""
    data = _with_default_optimizer({key: value for key, value in data.items() if value is not None})
    for path, mode in inferred_modes(data).items():
        data = with_value(data, path, mode)
    problems = _contradictions(data)
    experiment = collect_problems(problems, check, Experiment, data, "", EXPERIMENT)
    if experiment is None and all(problem.path for problem in problems):
        message = wrong_length(data.get("epochs"), data.get("steps"))
        problems.extend([Problem("", message)] if message else [])
    task, task_args, hooks = _components(data, problems)
    if problems or experiment is None or task is None:
        raise ConfigError(problems)
    entries = {name: one.entry if one else None for name, one in hooks.items()}
    experiment = experiment.model_copy(update={"task_args": task_args, "hooks": entries})
    problems.extend(change_problems(experiment))
    if problems:
        raise ConfigError(problems)
    return ResolvedExperiment(experiment, task, {name: one.hook for name, one in hooks.items() if one})


def _components(
    data: Mapping[str, Any], problems: list[Problem]
) -> tuple[Task | None, dict[str, Any], dict[str, MadeHook | None]]:
    """Task, its arguments and the hooks in full; checks whatever has the right shape, so that one mistake hides no other."""
    name, arguments, entries = data.get("task"), data.get("task_args", {}), data.get("hooks", {})
    made = None
    if isinstance(name, str) and isinstance(arguments, dict):
        made = collect_problems(problems, make_task, name, arguments)
    task, task_args = made or (None, {})
    hooks: dict[str, MadeHook | None] = {}
    if isinstance(entries, dict):
        hooks = collect_problems(problems, make_hooks, entries, task.required_hooks() if task else {}) or {}
    problems.extend(_sharding_problems(data, hooks))
    made_hooks = {name: one.hook for name, one in hooks.items() if one}
    misfits = {name: hook.misfit(made_hooks) for name, hook in made_hooks.items()}
    problems.extend(Problem(f"hooks.{name}", message) for name, message in misfits.items() if message)
    collect_problems(problems, check_optimizer, _component(data.get("optimizer")), _component(data.get("scheduler")))
    return task, task_args, hooks


def inferred_modes(data: Mapping[str, Any], sweep: Sweep | None = None) -> dict[str, Any]:
    """The path of each `mode` that the sweep, a checkpoint or early stopping leaves unsaid though another part of the
    experiment says it of their metrics, and what it says. `sweep` is that of which the experiment is a trial."""
    if sweep is not None:
        data = {**data, "sweep": {"metric": sweep.metric, "mode": [mode for _, mode in sweep.objectives]}}
    declared, inferred = declared_modes(data), {}
    for judge in judges(data):
        kind = judge.entry.get("type", judge.path.removeprefix("hooks."))
        silent = judge.entry.get("mode") is None and judge.entry.get("rule") is None
        modes = [direction(metric, declared) for metric in judge.metrics]
        if silent and kind in ("sweep", "checkpoint", "early_stopping") and declared.keys() & {*judge.metrics} and all(modes):
            inferred[f"{judge.path}.mode"] = modes if len(modes) > 1 else modes[0]
    return inferred


def _contradictions(data: Mapping[str, Any]) -> list[Problem]:
    """Parts of an experiment that say opposite things of a metric."""
    problems: list[Problem] = []
    first: dict[str, Judge] = {}
    for judge in judges(data):
        for metric, mode in judge.modes.items():
            other = first.setdefault(metric, judge)
            if other.modes[metric] != mode:
                message = f"says that {mode} of {metric} is better, and {other.path} says {other.modes[metric]}"
                problems.append(Problem(judge.path, message))
    return problems


def _sharding_problems(data: Mapping[str, Any], hooks: Mapping[str, MadeHook | None]) -> list[Problem]:
    """What cannot be where ranks share out the model among them."""
    workers = data.get("workers")
    if not isinstance(workers, dict) or workers.get("strategy") != "fsdp":
        return []
    reasons = {f"hooks.{name}": one.hook.needs_whole_model() for name, one in hooks.items() if one}
    if data.get("precision") == "fp16":
        reasons["precision"] = "each rank would scale the loss by its own shards' overflows; bf16 needs no scale"
    if data.get("channels_last"):
        reasons["channels_last"] = "torch shards only parameters whose elements lie in their own order"
    if data.get("compile"):
        reasons["compile"] = "torch's compiler stops at the calls that gather each unit's parameters"
    return [Problem(path, f"cannot be with workers.strategy: fsdp: {reason}") for path, reason in reasons.items() if reason]


def _with_default_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """Arguments without a `type` are those of the default optimizer: `optimizer: {lr: 0.5}`."""
    given = data.get("optimizer", {})
    if not isinstance(given, dict) or "type" in given:
        return data
    default: Component = Experiment.model_fields["optimizer"].default
    return {**data, "optimizer": {"type": default.type, **default.arguments, **given}}


def _component(value: Any) -> Component | None:
    shaped = isinstance(value, dict) and isinstance(value.get("type"), str)
    return check(Component, value, "") if shaped else None
