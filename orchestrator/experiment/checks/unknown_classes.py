"""Names of classes that cannot be found, and classes in their place, so that everything else is
checked as well."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hooks import Hook
from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.components import find_hook_class
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.optim.scheduler import list_argument_names
from orchestrator.experiment.yaml.reader import join
from orchestrator.task import Task
from orchestrator.user_code import find_class


@dataclass
class AnyTask(Task):
    """Stands for an unknown task, which may define everything that an experiment refers to."""

    def model(self) -> Any:
        raise NotImplementedError

    def data(self) -> Any:
        raise NotImplementedError

    def loss(self, output: Any, batch: Any) -> Any:
        raise NotImplementedError

    def parameters(self, model: Any) -> Any:
        raise NotImplementedError

    def optimizer(self, model: Any, **arguments: Any) -> Any:
        raise NotImplementedError

    def scheduler(self, optimizer: Any, **arguments: Any) -> Any:
        raise NotImplementedError


@dataclass
class AnyTaskWithTurns(AnyTask):
    """Stands for an unknown task that trains several optimizers."""

    def turns(self, model: Any, batch: Any) -> Iterator[Any]:
        raise NotImplementedError


class AnyOptimizer(Optimizer):
    """Stands for an unknown optimizer, with any arguments."""

    def __init__(self, params: Any, **arguments: Any) -> None:
        raise NotImplementedError


class AnyScheduler(LRScheduler):
    """Stands for an unknown scheduler, with any arguments."""

    def __init__(self, optimizer: Any, **arguments: Any) -> None:
        raise NotImplementedError


@dataclass
class AnyHook(Hook):
    """Stands for an unknown hook."""


def replace_unknown_classes(data: Mapping[str, Any], problems: list[Problem]) -> Mapping[str, Any]:
    """Return the data of an experiment with classes that stand for unknown ones, and add a problem
    for each of these.

    `replace_unknown_hooks` does the same for hooks, for which the task must be known.
    """
    name = data.get("task")
    if (
        isinstance(name, str)
        and collect_problems(problems, find_class, name, Task, {}, "task") is None
    ):
        task = AnyTaskWithTurns if data.get("optimizers") else AnyTask
        data = {**data, "task": _name(task), "task_args": {}}
    changed = {
        key: _replace_in_entry(data[key], key, problems)
        for key in ("optimizer", "scheduler")
        if key in data
    }
    optimizers = data.get("optimizers")
    if isinstance(optimizers, Mapping):
        changed["optimizers"] = {
            name: _replace_in_entry(entry, f"optimizers.{name}", problems)
            for name, entry in optimizers.items()
        }
    return {**data, **changed}


def _replace_in_entry(entry: Any, path: str, problems: list[Problem]) -> Any:
    """Return the entry of an optimizer, a scheduler or a list of schedulers without unknown
    classes."""
    if isinstance(entry, list):
        return [
            _replace_in_entry(item, join(path, index), problems) for index, item in enumerate(entry)
        ]
    if not isinstance(entry, Mapping):
        return entry
    is_scheduler = "scheduler" in path.split(".")
    changed, kind = dict(entry), entry.get("type")
    if isinstance(kind, str) and kind not in ("", FROM_TASK):
        if is_scheduler:
            known: Any = collect_problems(problems, list_argument_names, kind, AnyTask, path)
        else:
            known = collect_problems(
                problems, find_class, kind, Optimizer, OPTIMIZERS, join(path, "type")
            )
        if known is None:
            changed["type"] = _name(AnyScheduler if is_scheduler else AnyOptimizer)
    if not is_scheduler and path != "optimizer" and "scheduler" in entry:
        changed["scheduler"] = _replace_in_entry(
            entry["scheduler"], join(path, "scheduler"), problems
        )
    return changed


def replace_unknown_hooks(
    entries: Mapping[str, Any], required: Collection[str], problems: list[Problem]
) -> dict[str, Any]:
    """Return entries of hooks with a class that stands for unknown ones, and add a problem for each
    of these."""
    changed = dict(entries)
    for name, entry in entries.items():
        settings = entry if isinstance(entry, Mapping) else {}
        kind = settings.get("type", name)
        is_on = entry is True or isinstance(entry, Mapping)
        if not is_on or not isinstance(kind, str) or (name in required and "type" not in settings):
            continue
        path = f"hooks.{name}" if kind == name else f"hooks.{name}.type"
        if (
            collect_problems(problems, find_hook_class, kind, path, entries if kind == name else ())
            is None
        ):
            priority = {key: value for key, value in settings.items() if key == "priority"}
            changed[name] = {"type": _name(AnyHook), **priority}
    return changed


def _name(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"
