"""Classes that stand for unknown ones, so that everything else is checked as well."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hooks import Hook, State
from orchestrator.errors import Problem, find_problems
from orchestrator.experiment.make_hooks import find_hook_class
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


def replace_unknown_classes(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return an experiment with classes that stand for unknown ones, and the problems of these.

    `replace_unknown_hooks` does the same for hooks, for which the task must be known.
    """
    replacement = _Replacement()
    return replacement.replace_sections(data), replacement.problems


class _Replacement:
    """A replacement of unknown classes, which collects their problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def replace_sections(self, data: Mapping[str, Any]) -> dict[str, Any]:
        known = dict(data)
        if self._is_task_unknown(data.get("task")):
            task = AnyTaskWithTurns if data.get("optimizers") else AnyTask
            known.update(task=_get_path(task), task_args={})
        if "optimizer" in data:
            known["optimizer"] = self._replace_optimizer(data["optimizer"], "optimizer")
        if "scheduler" in data:
            known["scheduler"] = self._replace_schedulers(data["scheduler"], "scheduler")
        optimizers = data.get("optimizers")
        if isinstance(optimizers, Mapping):
            known["optimizers"] = {
                name: self._replace_named_optimizer(entry, f"optimizers.{name}")
                for name, entry in optimizers.items()
            }
        return known

    def _is_task_unknown(self, name: Any) -> bool:
        """Return whether a task is named and cannot be found."""
        if not isinstance(name, str):
            return False
        return self._collect(find_problems(find_class, name, Task, {}, "task"))

    def _replace_named_optimizer(self, entry: Any, path: str) -> Any:
        entry = self._replace_optimizer(entry, path)
        if not isinstance(entry, Mapping) or "scheduler" not in entry:
            return entry
        schedulers = self._replace_schedulers(entry["scheduler"], f"{path}.scheduler")
        return {**entry, "scheduler": schedulers}

    def _replace_optimizer(self, entry: Any, path: str) -> Any:
        kind = _get_class_name(entry)
        if kind and self._collect(find_problems(find_optimizer_class, kind, path)):
            return {**entry, "type": _get_path(AnyOptimizer)}
        return entry

    def _replace_schedulers(self, entry: Any, path: str) -> Any:
        """Return the entry of a scheduler, or of a list of them, without unknown classes."""
        if isinstance(entry, list):
            return [
                self._replace_schedulers(item, f"{path}.{index}")
                for index, item in enumerate(entry)
            ]
        kind = _get_class_name(entry)
        if kind and self._collect(find_problems(list_argument_names, kind, AnyTask, path)):
            return {**entry, "type": _get_path(AnyScheduler)}
        return entry

    def _collect(self, problems: Iterator[Problem]) -> bool:
        """Collect the problems of looking for a class; return whether there are any."""
        found = list(problems)
        self.problems += found
        return bool(found)


def _get_class_name(entry: Any) -> str:
    """Return the class that an entry names; empty if it names none, or the task's method."""
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    return kind if isinstance(kind, str) and kind != FROM_TASK else ""


def replace_unknown_hooks(
    entries: Mapping[str, Any], required: Collection[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return hooks with a class that stands for unknown ones, and the problems of these."""
    known = dict(entries)
    problems: list[Problem] = []
    for name, entry in entries.items():
        settings = entry if isinstance(entry, Mapping) else {}
        kind = settings.get("type", name)
        is_on = entry is True or isinstance(entry, Mapping)
        is_required = name in required and "type" not in settings
        if not is_on or is_required or not isinstance(kind, str):
            continue

        path = f"hooks.{name}" if kind == name else f"hooks.{name}.type"
        others = entries if kind == name else ()
        own_problems = list(find_problems(find_hook_class, kind, path, others))
        if own_problems:
            problems += own_problems
            priority = {key: value for key, value in settings.items() if key == "priority"}
            known[name] = {"type": _get_path(AnyHook), **priority}
    return known, problems


def _get_path(cls: type) -> str:
    """Return the import path of a class of this module."""
    return f"{__name__}:{cls.__name__}"
