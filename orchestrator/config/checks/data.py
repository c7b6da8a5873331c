"""The data that a task gives for its phases, as far as it can be checked before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from hooks.metrics.names import PHASES
from orchestrator.config.checks.metrics import phase_problems
from orchestrator.config.components import NAME, WRONG_NAME
from orchestrator.config.python.user_code import given, users_code
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.task import Task, trains_itself

PHASES_OF_DATA = "a mapping of train, and val and test where there are, to their datasets"
_NOTHING = object()


def is_indexed(dataset: Any) -> bool:
    """Return whether this is a map-style dataset."""
    return not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def length_of(dataset: Any) -> int | None:
    """Return a length, where there is one: a class may have a `__len__` that raises."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def data_problems(data: Mapping[str, Any], task: Task) -> list[Problem]:
    """Return the problems of a task's data under an experiment, down to the first sample of each phase.

    A task that trains by itself gives no data.
    """
    problems: list[Problem] = []
    if trains_itself(type(task)):
        return problems
    datasets = collect_problems(problems, given, task.data, "task", Mapping, PHASES_OF_DATA)
    if datasets is None:
        return problems
    collect_problems(problems, check_phases, task, datasets)
    for phase, dataset in datasets.items():
        collect_problems(problems, _take_first, task, phase, dataset)
    return [*dict.fromkeys(problems), *phase_problems(data, list(datasets))]


def check_phases(task: Task, datasets: Mapping[str, Any]) -> None:
    """Raise ConfigError where there is no training data, or a phase cannot be what it is."""
    if "train" not in datasets:
        message = f"{type(task).__name__}.data() gives no 'train', only {sorted(map(str, datasets))}"
        raise ConfigError([Problem("task", message)])
    problems: list[Problem] = []
    for phase, dataset in datasets.items():
        collect_problems(problems, _check_phase, phase, dataset)
    if problems:
        raise ConfigError(problems)


def _check_phase(phase: str, dataset: Any) -> None:
    kind, has_name, name = str(phase).partition("/")
    if kind not in PHASES or (has_name and kind == "train"):
        message = (
            f"data() gives a phase '{phase}'; phases are train, val and test, and val/NAME and test/NAME where there"
            " are several"
        )
        raise ConfigError([Problem("task", message)])
    if has_name and not NAME.fullmatch(name):
        raise ConfigError([Problem("task", f"data() gives a phase '{phase}', and '{name}' {WRONG_NAME}")])
    what = f"{phase} dataset ({type(dataset).__name__})"
    if not _is_of_ray(dataset) and not is_indexed(dataset) and not hasattr(dataset, "__iter__"):
        message = f"the {what} has neither an index (__len__ and __getitem__) nor __iter__"
        raise ConfigError([Problem("task", message)])
    if not _is_of_ray(dataset) and length_of(dataset) == 0:
        raise _empty(phase, dataset, "its length is 0")


def _empty(phase: str, dataset: Any, reason: str) -> ConfigError:
    advice = None if phase == "train" else f"where there is nothing to evaluate, leave {phase} out of data()"
    message = f"the {phase} data ({type(dataset).__name__}) is empty: {reason}"
    return ConfigError([Problem("task", message, suggestion=advice)])


def _take_first(task: Task, phase: str, dataset: Any) -> None:
    """Take a sample, where none of the task's own code decides which; raise ConfigError where there is none."""
    if _is_of_ray(dataset) or length_of(dataset) == 0:
        return
    with users_code("task", f"the first sample of the {phase} data ({type(dataset).__name__}) cannot be read"):
        if is_indexed(dataset):
            if (type(task).sampler, type(task).loader) == (Task.sampler, Task.loader):
                dataset[0]
        elif hasattr(dataset, "__iter__") and next(iter(dataset), _NOTHING) is _NOTHING:
            raise _empty(phase, dataset, "it gives no sample")


def _is_of_ray(dataset: Any) -> bool:
    """Return whether only a cluster can read it."""
    return type(dataset).__module__.startswith("ray.data")
