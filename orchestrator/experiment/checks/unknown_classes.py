"""Classes that stand for unknown ones, so that everything else is checked as well."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hooks import Hook, State
from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.components import find_hook_class
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.optimizer import find_optimizer_class
from orchestrator.experiment.optim.scheduler import list_argument_names
from orchestrator.task import Task
from orchestrator.user_code.named_classes import find_class


@dataclass
class AnyTask(Task):
    """Stands for an unknown task, which may define everything that an experiment refers to."""

    def model(self) -> Any: ...

    def data(self) -> Any: ...

    def loss(self, output: Any, batch: Any) -> Any: ...

    def parameters(self, model: Any) -> Any: ...

    def optimizer(self, model: Any, **arguments: Any) -> Any: ...

    def scheduler(self, optimizer: Any, **arguments: Any) -> Any: ...


@dataclass
class AnyTaskWithTurns(AnyTask):
    """Stands for an unknown task that trains several optimizers."""

    def turns(self, model: Any, batch: Any) -> Iterator[Any]:
        return iter(())


class AnyOptimizer(Optimizer):
    """Stands for an unknown optimizer, with any arguments."""

    def __init__(self, params: Any, **arguments: Any) -> None: ...


class AnyScheduler(LRScheduler):
    """Stands for an unknown scheduler, with any arguments."""

    def __init__(self, optimizer: Any, **arguments: Any) -> None: ...


@dataclass
class AnyHook(Hook):
    """Stands for an unknown hook, so it is called at some event."""

    def on_end(self, state: State) -> None: ...


def replace_unknown_classes(data: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return an experiment with classes that stand for unknown ones, and add their problems.

    `replace_unknown_hooks` does the same for hooks, for which the task must be known.
    """
    known = dict(data)
    if _is_task_unknown(data.get("task"), problems):
        task = AnyTaskWithTurns if data.get("optimizers") else AnyTask
        known.update(task=_get_path(task), task_args={})
    if "optimizer" in data:
        known["optimizer"] = _replace_optimizer(data["optimizer"], "optimizer", problems)
    if "scheduler" in data:
        known["scheduler"] = _replace_schedulers(data["scheduler"], "scheduler", problems)
    optimizers = data.get("optimizers")
    if isinstance(optimizers, Mapping):
        known["optimizers"] = {
            name: _replace_named_optimizer(entry, f"optimizers.{name}", problems)
            for name, entry in optimizers.items()
        }
    return known


def _is_task_unknown(name: Any, problems: list[Problem]) -> bool:
    """Return whether a task is named and cannot be found, and add the problem."""
    if not isinstance(name, str):
        return False
    return collect_problems(problems, find_class, name, Task, {}, "task") is None


def _replace_named_optimizer(entry: Any, path: str, problems: list[Problem]) -> Any:
    entry = _replace_optimizer(entry, path, problems)
    if not isinstance(entry, Mapping) or "scheduler" not in entry:
        return entry
    schedulers = _replace_schedulers(entry["scheduler"], f"{path}.scheduler", problems)
    return {**entry, "scheduler": schedulers}


def _replace_optimizer(entry: Any, path: str, problems: list[Problem]) -> Any:
    kind = _get_class_name(entry)
    if not kind:
        return entry
    if collect_problems(problems, find_optimizer_class, kind, path) is not None:
        return entry
    return {**entry, "type": _get_path(AnyOptimizer)}


def _replace_schedulers(entry: Any, path: str, problems: list[Problem]) -> Any:
    """Return the entry of a scheduler, or of a list of them, without unknown classes."""
    if isinstance(entry, list):
        return [
            _replace_schedulers(item, f"{path}.{index}", problems)
            for index, item in enumerate(entry)
        ]
    kind = _get_class_name(entry)
    if not kind:
        return entry
    if collect_problems(problems, list_argument_names, kind, AnyTask, path) is not None:
        return entry
    return {**entry, "type": _get_path(AnyScheduler)}


def _get_class_name(entry: Any) -> str:
    """Return the class that an entry names; empty if it names none, or the task's method."""
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    return kind if isinstance(kind, str) and kind != FROM_TASK else ""


def replace_unknown_hooks(
    entries: Mapping[str, Any], required: Collection[str], problems: list[Problem]
) -> dict[str, Any]:
    """Return hooks with a class that stands for unknown ones, and add their problems."""
    known = dict(entries)
    for name, entry in entries.items():
        settings = entry if isinstance(entry, Mapping) else {}
        kind = settings.get("type", name)
        is_on = entry is True or isinstance(entry, Mapping)
        is_required = name in required and "type" not in settings
        if not is_on or is_required or not isinstance(kind, str):
            continue
        path = f"hooks.{name}" if kind == name else f"hooks.{name}.type"
        others = entries if kind == name else ()
        if collect_problems(problems, find_hook_class, kind, path, others) is None:
            priority = {key: value for key, value in settings.items() if key == "priority"}
            known[name] = {"type": _get_path(AnyHook), **priority}
    return known


def _get_path(cls: type) -> str:
    """Return the import path of a class of this module."""
    return f"{__name__}:{cls.__name__}"
