"""From what was written to objects: classes found, everything filled in, checked and built, once. In every process that
needs an experiment: the driver, a worker, a trial's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hooks import Hook, ParamScheduler
from hooks.hook import Setup
from hooks.import_path import extend_import_path
from orchestrator.config.checks.custom_training import custom_training_with_defaults, fitting_defaults
from orchestrator.config.checks.key_placement import with_place
from orchestrator.config.checks.metric_modes import contradicting_modes, inferred_modes
from orchestrator.config.checks.metrics import metric_problems
from orchestrator.config.checks.other_systems import EXPERIMENT
from orchestrator.config.components import MadeHook, make_hooks, make_task
from orchestrator.config.optim.changes import change_problems
from orchestrator.config.optim.optimization import check_optimization, optimization_with_defaults
from orchestrator.config.optim.optimizer import OPTIMIZERS, needs_closure
from orchestrator.config.python.imports import define_in_main, find_class
from orchestrator.config.python.parameters import check
from orchestrator.config.python.user_code import given, users_code
from orchestrator.config.sections.experiment import Experiment, Scaler, without_nulls, wrong_length
from orchestrator.config.text.source import ExperimentSource, with_value
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.randomness import seeded
from orchestrator.task import Task, takes_turns, trains_itself


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment in full, and what it is trained with."""

    experiment: Experiment
    """With every default filled in."""
    task: Task
    hooks: dict[str, Hook]
    """By name, in order, without those switched off."""


def resolve(source: ExperimentSource) -> ResolvedExperiment:
    """What a source says in full, its task and hooks built; raises ConfigError with every problem. Of a sweep that is
    the experiment below it; whether its space fits is for `load`."""
    extend_import_path(source.import_paths)
    define_in_main(source.main_classes)
    data, problems = source.merged()
    resolved = collect_problems(problems, build, data)
    if problems or resolved is None:
        task = find_task(data)
        raise ConfigError([with_place(problem, data, task) for problem in problems])
    resolved.experiment._source, resolved.experiment._is_resolved = source, True
    return resolved


def build(data: Mapping[str, Any]) -> ResolvedExperiment:
    """As `resolve`, for data whose classes can be found."""
    data = without_nulls(data)
    for path, mode in inferred_modes(data).items():
        data = with_value(data, path, mode)
    problems = contradicting_modes(data)
    task_class = find_task(data)
    trains_by_itself = task_class is not None and trains_itself(task_class)
    if task_class and trains_by_itself:
        data = custom_training_with_defaults(data, task_class, problems)
    else:
        data = optimization_with_defaults(data, task_class, problems)
    experiment = collect_problems(problems, check, Experiment, data, "", EXPERIMENT)
    if experiment is None and all(problem.path for problem in problems):
        message = wrong_length(data.get("epochs"), data.get("steps"))
        problems.extend([Problem("", message)] if message else [])
    if experiment and not trains_by_itself:
        problems.extend([*_unread_scaler(experiment), *_exchange_problems(experiment, task_class)])
    # A task may draw numbers as it is made, for a model in `__post_init__` say.
    with seeded(experiment.seed if experiment else 0):
        task, task_args, hooks = _components(data, task_class, problems)
    if problems or experiment is None or task is None:
        raise ConfigError(problems)
    entries = {name: one.entry if one else None for name, one in hooks.items()}
    experiment = experiment.model_copy(update={"task_args": task_args, "hooks": entries})
    made = {name: one.hook for name, one in hooks.items() if one}
    problems.extend(
        [
            *change_problems(experiment, type(task)),
            *_unread_of_cudnn(experiment),
        ]
    )
    if problems:
        raise ConfigError(problems)
    return ResolvedExperiment(experiment, task, made)


def _components(
    data: Mapping[str, Any], task_class: type[Task] | None, problems: list[Problem]
) -> tuple[Task | None, dict[str, Any], dict[str, MadeHook | None]]:
    """Task, its arguments and the hooks in full; checks whatever has the right shape, so that one mistake hides no
    other."""
    name, arguments, entries = data.get("task"), data.get("task_args", {}), data.get("hooks", {})
    made = None
    if isinstance(name, str) and isinstance(arguments, dict):
        made = collect_problems(problems, make_task, name, arguments)
    task, task_args = made or (None, {})
    right, trains_by_itself = None, task_class is not None and trains_itself(task_class)
    if isinstance(entries, dict):
        required = (
            collect_problems(problems, given, task.required_hooks, "task", Mapping, "a mapping of names to hooks")
            if task
            else None
        )
        defaults = fitting_defaults() if trains_by_itself else None
        right = collect_problems(problems, make_hooks, entries, required or {}, defaults)
    hooks = right or {}
    made_hooks = {name: one.hook for name, one in hooks.items() if one}
    if task:
        said = {**data, "hooks": {name: one.entry for name, one in hooks.items() if one}}
        problems.extend(metric_problems(said, task, made_hooks))
    problems.extend(_unsuitable_hooks(_setup(data, task_class, made_hooks)))
    if trains_by_itself:
        return task, task_args, hooks
    problems.extend(_sharding_problems(data))
    if data.get("accumulate") == "auto":
        problems.extend(_fitting_problems(data, task_class))
    # Where hooks are wrong, who steps the scheduler is not known.
    check_optimization(
        data, task_class, {"param_scheduler": ParamScheduler()} if right is None else made_hooks, problems
    )
    return task, task_args, hooks


def _unread_scaler(experiment: Experiment) -> list[Problem]:
    """What is said of a scale that there is not."""
    said, usual = experiment.scaler.model_dump(), Scaler().model_dump()
    others = [key for key in said if said[key] != usual[key] and experiment.precision != "fp16"]
    return [
        Problem(f"scaler.{key}", f"is read by nothing, got {said[key]}: it needs precision: fp16") for key in others
    ]


def _unread_of_cudnn(experiment: Experiment) -> list[Problem]:
    if experiment.cudnn_benchmark and not experiment.workers.gpu:
        return [Problem("cudnn_benchmark", "is read by nothing: it needs workers.gpu: true")]
    if experiment.cudnn_benchmark and experiment.deterministic:
        return [
            Problem(
                "cudnn_benchmark",
                "cannot be with deterministic: which algorithm is the fastest differs from time to time",
            )
        ]
    return []


def _exchange_problems(experiment: Experiment, task: type[Task] | None) -> list[Problem]:
    """What is said of an exchange between ranks that there is not, or not so. A single rank may be told of one, as the
    same file goes for several."""
    workers, problems = experiment.workers, []
    options = workers.ddp.set_otherwise()
    if workers.strategy == "fsdp":
        problems += [Problem(f"workers.ddp.{name}", "is read by nothing: it needs strategy: ddp") for name in options]
    elif workers.meta_device:
        problems.append(Problem("workers.meta_device", "is read by nothing: it needs strategy: fsdp"))
    elif task and takes_turns(task):
        problems += [
            Problem(
                f"workers.ddp.{name}",
                "is read by nothing: each turn exchanges the gradients that there are of its parameters",
            )
            for name in options
        ]
    elif experiment.accumulate == "auto":
        problems += [
            Problem(
                f"workers.ddp.{name}",
                "is read by nothing: with accumulate: auto ranks exchange gradients after the backward pass, and not"
                " by DDP",
            )
            for name in options
        ]
    elif workers.ddp.static_graph and workers.ddp.find_unused_parameters:
        problems.append(
            Problem(
                "workers.ddp.find_unused_parameters",
                "is read by nothing: with static_graph torch looks for them once, in the first iteration",
            )
        )
    if workers.ddp.static_graph and experiment.micro_batches > 1:
        problems.append(
            Problem(
                "workers.ddp.static_graph",
                "cannot be with accumulate: torch takes the first backward pass for the graph, and it exchanges"
                " nothing",
            )
        )
    if experiment.sync_batchnorm and workers.max_count > 1 and not workers.gpu:
        problems.append(
            Problem(
                "sync_batchnorm",
                "needs GPUs: torch's SyncBatchNorm computes nowhere else",
                suggestion="write workers.gpu: true",
            )
        )
    return problems


def _setup(data: Mapping[str, Any], task: type[Task] | None, hooks: Mapping[str, Hook]) -> Setup:
    workers, optimizer = data.get("workers"), data.get("optimizer")
    kind = str(optimizer.get("type")) if isinstance(optimizer, dict) else ""
    is_sharded = isinstance(workers, dict) and workers.get("strategy") == "fsdp" and workers.get("count", 1) != 1
    return Setup(
        strategy="fsdp" if is_sharded else "ddp",
        custom_loop=task is not None and trains_itself(task),
        several_optimizers=task is not None and takes_turns(task),
        splits_batches=data.get("accumulate") == "auto",
        closure=needs_closure(OPTIMIZERS[kind]) if kind in OPTIMIZERS else False,
        hooks=hooks,
    )


def _unsuitable_hooks(setup: Setup) -> list[Problem]:
    problems: list[Problem] = []
    for name, hook in setup.hooks.items():
        path = f"hooks.{name}"
        reason = collect_problems(problems, _reason_against, hook, setup, path)
        problems.extend([Problem(path, reason)] if reason else [])
    return problems


def _reason_against(hook: Hook, setup: Setup, path: str) -> str:
    with users_code(path, f"{type(hook).__name__}.unsuitable() fails"):
        return setup.find_reason_against(hook)


def _sharding_problems(data: Mapping[str, Any]) -> list[Problem]:
    """What cannot be where ranks share out the model among them."""
    workers = data.get("workers")
    if not isinstance(workers, dict) or workers.get("strategy") != "fsdp":
        return []
    if workers.get("count", 1) == 1:
        message = "is fsdp, which shares the model out among ranks, and there is one"
        return [Problem("workers.strategy", message, suggestion="write workers.count, or strategy: ddp")]
    reasons = {}
    if data.get("optimizers"):
        reasons["optimizers"] = (
            "each turn is given the gradients of its own parameters, of which each rank has but parts"
        )
    if data.get("precision") == "fp16":
        reasons["precision"] = "each rank would scale the loss by its own shards' overflows; bf16 needs no scale"
    if data.get("channels_last"):
        reasons["channels_last"] = "torch shards only parameters whose elements lie in their own order"
    return [
        Problem(path, f"cannot be with workers.strategy: fsdp: {reason}") for path, reason in reasons.items() if reason
    ]


def _fitting_problems(data: Mapping[str, Any], task: type[Task] | None) -> list[Problem]:
    """What cannot be where a batch is gone through in pieces, and begun again when memory runs out."""
    workers = data.get("workers")
    reasons = {}
    if task and takes_turns(task):
        reasons["accumulate"] = "a turn cannot be begun again, as those before it have changed the model"
    if isinstance(workers, dict) and workers.get("strategy") == "fsdp":
        reasons["workers.strategy"] = (
            "ranks gather parameters within the forward pass, and would wait there for one that runs out of memory"
        )
    if data.get("sync_batchnorm"):
        reasons["sync_batchnorm"] = (
            "ranks exchange statistics within the forward pass, and would wait there for one that runs out of memory"
        )
    return [Problem(path, f"cannot be with accumulate: auto: {reason}") for path, reason in reasons.items()]


def find_task(data: Mapping[str, Any]) -> type[Task] | None:
    """The class of the task, where there is one; what is wrong otherwise is said where the task is made."""
    name = data.get("task")
    return collect_problems([], find_class, name, Task, {}, "task") if isinstance(name, str) else None
