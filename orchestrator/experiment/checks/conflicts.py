"""Conflicts between the parts of an experiment, each of which is valid on its own: sections, hooks
and the task."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hooks import HOOKS, Hook
from hooks.hook import Setup
from orchestrator.errors import Problem, collect_problems, did_you_mean
from orchestrator.experiment.checks.metrics import check_metrics, find_contradicting_modes
from orchestrator.experiment.checks.optimizers import find_optimizer_conflicts
from orchestrator.experiment.components import DEFAULT_HOOKS, find_hook_class, make_hook
from orchestrator.experiment.fields.parameters import check_needs, find_changed_keys
from orchestrator.experiment.optim.closures import find_closure_class
from orchestrator.experiment.optim.component import Component, Optimization, parse_optimizer_path
from orchestrator.experiment.optim.optimizer import check_optimizer
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Ddp, Workers
from orchestrator.experiment.yaml.source import with_value
from orchestrator.task import Task, has_custom_loop, has_turns, has_weights
from orchestrator.user_code import catch_user_errors, find_source_location

_ALWAYS_READ = frozenset(
    "name task task_args epochs steps seed max_failures max_preemptions hang workers upload_every environment tags"
    " notes hooks sweep".split()
)
_DECLARABLE = Experiment.model_fields.keys() - _ALWAYS_READ
_READ_WORKER_KEYS = frozenset(
    ["count", "gpu", "cpus", "memory", "accelerator", "resources", "spares"]
)


def find_conflicts(
    experiment: Experiment, task: Task, hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    cls = type(task)
    data = experiment.model_dump(mode="json")
    yield from find_contradicting_modes(data)
    if has_custom_loop(cls):
        yield from check_train_method(experiment, cls)
    else:
        yield from check_needs(experiment, experiment)
        yield from _check_distribution(experiment, cls)
        yield from find_optimizer_conflicts(experiment, cls, hooks)
        yield from check_changes(experiment, cls)
    yield from check_metrics(data, task, hooks)
    yield from _check_hooks(experiment, cls, hooks)


def _check_hooks(
    experiment: Experiment, task: type[Task], hooks: Mapping[str, Hook]
) -> Iterator[Problem]:
    workers, kind = experiment.workers, experiment.optimizer.type
    setup = Setup(
        strategy="fsdp" if workers.strategy == "fsdp" and workers.count != 1 else "ddp",
        custom_loop=has_custom_loop(task),
        several_optimizers=has_turns(task),
        splits_batches=experiment.accumulate == "auto",
        closure=find_closure_class(kind) is not None,
        hooks=hooks,
    )
    problems: list[Problem] = []
    for name, hook in hooks.items():
        catch = catch_user_errors(f"hooks.{name}", f"{type(hook).__name__}.unsuitable() failed")
        if reason := collect_problems(problems, catch(setup.find_reason_against), hook):
            problems.append(Problem(f"hooks.{name}", reason))
    yield from problems


def _check_distribution(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the settings that contradict how ranks share the model or how batches are split."""
    workers, ddp, turns = experiment.workers, experiment.workers.ddp, has_turns(task)
    is_fsdp, is_split = workers.strategy == "fsdp", experiment.accumulate == "auto"
    if not is_fsdp and (turns or is_split):
        reason = (
            "each turn exchanges its own gradients"
            if turns
            else "with accumulate: auto ranks exchange them later"
        )
        for path in find_changed_keys(ddp, Ddp(), "workers.ddp"):
            yield Problem(path, f"has no effect: {reason}, without DDP")
    several, many_ranks = bool(experiment.optimizers), workers.max_count > 1
    fsdp, auto = (
        "cannot be combined with workers.strategy: fsdp",
        "cannot be combined with accumulate: auto",
    )
    find_unused, static = "workers.ddp.find_unused_parameters", "workers.ddp.static_graph"
    lacks_gpu = experiment.sync_batchnorm and many_ranks and not workers.gpu
    conflicts = [
        (
            ddp.static_graph and ddp.find_unused_parameters,
            find_unused,
            "has no effect with static_graph; remove it",
        ),
        (
            ddp.static_graph and experiment.micro_batches > 1,
            static,
            "cannot be combined with accumulate",
        ),
        (
            lacks_gpu,
            "sync_batchnorm",
            "needs GPUs, as torch's SyncBatchNorm does; write workers.gpu: true",
        ),
        (
            is_fsdp and workers.count == 1,
            "workers.strategy",
            "fsdp needs several ranks; set workers.count",
        ),
        (
            is_fsdp and several,
            "optimizers",
            f"{fsdp}: a turn needs full gradients, and each rank has only shards",
        ),
        (
            is_fsdp and experiment.precision == "fp16",
            "precision",
            f"{fsdp}; use bf16, which needs no scale",
        ),
        (
            is_fsdp and experiment.channels_last,
            "channels_last",
            f"{fsdp}: torch shards only the default memory format",
        ),
        (
            is_split and turns,
            "accumulate",
            "cannot be auto with turns(), which change the model between them",
        ),
        (
            is_split and is_fsdp,
            "workers.strategy",
            f"{auto}: ranks would wait for one that runs out of memory",
        ),
        (
            is_split and experiment.sync_batchnorm,
            "sync_batchnorm",
            f"{auto}: ranks exchange statistics in forward",
        ),
    ]
    yield from (Problem(path, message) for applies, path, message in conflicts if applies)
    if experiment.cudnn_benchmark and experiment.deterministic:
        yield Problem(
            "cudnn_benchmark",
            "cannot be combined with deterministic: the fastest algorithm may differ",
        )


# Values that change during a run


def explain_unchangeable(path: str, experiment: Experiment) -> str | None:
    """Return why a value cannot change during the run; None for mutable fields of hooks and numbers
    of optimizers."""
    group, _, rest = path.partition(".")
    name, _, field = rest.partition(".")
    if number := parse_optimizer_path(path):
        names = experiment.optimizations
        return (
            None
            if number[0] in names
            else f"there is no such optimizer; available: {', '.join(names) or 'one'}"
        )
    if group != "hooks" or not field:
        return (
            "cannot change during training; only fields of hooks and numbers of the optimizer can"
        )
    entry = experiment.hooks.get(name)
    if not isinstance(entry, dict):
        return f"there is no active hook '{name}'"
    mutable = sorted(find_hook_class(entry["type"]).mutable)
    if field in mutable:
        return None
    return f"cannot change during training; the mutable fields of '{name}' are: {', '.join(mutable) or 'none'}"


def check_changes(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    lengths = {"epochs": experiment.epochs, "steps": experiment.steps}
    for index, change in enumerate(experiment.changes):
        total = lengths[change.at.unit]
        if total is not None and change.at.count >= total:
            limit = f"{total} {change.at.unit}"
            yield Problem(
                f"changes.{index}.at", f"must be less than the run's {limit}, got {change.at}"
            )
        for name, value in change.set.items():
            message = explain_unchangeable(name, experiment)
            problems = (
                [Problem(name, message)]
                if message
                else _check_values(name, value, experiment, task)
            )
            path = f"changes.{index}.set.{name}"
            for problem in problems:
                yield Problem(
                    path, make_relative_message(name, problem), suggestion=problem.suggestion
                )


def _check_values(path: str, value: Any, experiment: Experiment, task: type[Task]) -> list[Problem]:
    problems: list[Problem] = []
    if number := parse_optimizer_path(path):
        name, key = number
        if type(value) not in (int, float):
            problems.append(Problem(path, f"must be a number, got {value!r}"))
        elif changed := collect_problems(
            problems, with_number, experiment.optimizations[name], key, value
        ):
            collect_problems(problems, check_optimizer, changed, task)
    else:
        _, name, field = path.split(".", 2)
        collect_problems(
            problems, make_hook, name, with_value(experiment.hooks[name], field, value)
        )
    return problems


def with_number(optimization: Optimization, key: str, value: float) -> Optimization:
    """Return the optimizer with one of its numbers changed; raise ConfigError if it has no such
    key."""
    return replace(
        optimization,
        optimizer=Component(**with_value(optimization.optimizer.model_dump(), key, value)),
    )


def make_relative_message(name: str, problem: Problem) -> str:
    """Return a problem's message for the path `name`, with the rest of the problem's path if it is
    below or beside."""
    is_above = not problem.path or name == problem.path or name.startswith(f"{problem.path}.")
    relative_path = "" if is_above else problem.path.removeprefix(f"{name}.")
    return f"{relative_path}: {problem.message}" if relative_path else problem.message


# Custom training loops


def list_train_parameters(task: type[Task]) -> dict[str, inspect.Parameter]:
    """Return the parameters of `train` after `session`, by name: keys of the experiment."""
    return dict(list(inspect.signature(task.train).parameters.items())[2:])


def list_train_defaults(task: type[Task]) -> dict[str, Any]:
    declared = list_train_parameters(task).items()
    return {
        name: value.default
        for name, value in declared
        if name in _DECLARABLE and value.default is not value.empty
    }


def list_default_hooks() -> list[str]:
    """Return the default hooks that work without the hooked loop."""
    setup = Setup(custom_loop=True)
    return [name for name in DEFAULT_HOOKS if not setup.find_reason_against(HOOKS[name]())]


def check_train_method(experiment: Experiment, task: type[Task]) -> Iterator[Problem]:
    """Yield the problems of `train` itself, and of keys that it does not read."""
    name, location, declared = (
        task.__name__,
        find_source_location(task.train),
        list_train_parameters(task),
    )
    if not inspect.isgeneratorfunction(inspect.unwrap(task.train)):
        yield Problem("task", f"{name}.train() has no `yield`, so it reports nothing{location}")
    if has_weights(task):
        message = f"{name}.weight() has no effect: {name}.train(), which trains, weighs its losses"
        where = find_source_location(task.weight)
        yield Problem("task", message + where, suggestion="remove it, or give it another name")
    for key in declared.keys() - _DECLARABLE:
        hint = did_you_mean(key, _DECLARABLE) or "make it a field of the task, which task_args sets"
        message = f"{name}.train() declares {key}, which is not a key of the experiment that it can read{location}"
        yield Problem("task", message, suggestion=hint)
    for key, field in Experiment.model_fields.items():
        if key in _DECLARABLE - declared.keys():
            default = field.get_default(call_default_factory=True)
            if any(find_changed_keys(getattr(experiment, key), default, key)):
                message = f"has no effect: {name}.train(), which trains, does not declare {key}"
                yield Problem(
                    key, message, suggestion=f"remove it, or write def train(self, session, {key})"
                )
    for key, field in Workers.model_fields.items():
        is_changed = any(find_changed_keys(getattr(experiment.workers, key), field.default, key))
        if key not in _READ_WORKER_KEYS and is_changed:
            yield Problem(
                f"workers.{key}",
                f"has no effect: {name}.train(), which trains, distributes its own model",
            )
