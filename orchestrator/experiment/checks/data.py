"""Checks of the data that a task returns for its phases, as far as possible before a run."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch.utils.data import IterableDataset

from hooks.metrics.names import PHASES
from orchestrator.errors import ConfigError, Problem, collect_problems
from orchestrator.experiment.checks.metrics import check_phases_of_metrics, list_monitored_metrics
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.units import format_count
from orchestrator.user_code import call_for_mapping, catch_user_errors

PHASES_OF_DATA = "a mapping of train, and optionally val and test, to their datasets"
_NAME = re.compile(r"\w[\w.-]{0,99}")
_NAME_RULE = (
    "must be at most 100 letters, digits, `_`, `-` and `.`, and begin with a letter or digit"
)
_MISSING = object()


def is_map_style(dataset: Any) -> bool:
    """Return whether this is a map-style dataset."""
    return (
        not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
        and hasattr(dataset, "__getitem__")
    )


def get_length(dataset: Any) -> int | None:
    """Return the length of a dataset, or None: a class may have a `__len__` that raises."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def check_data(experiment: Experiment, task: Task) -> list[Problem]:
    """Return the problems of a task's data, down to the first sample of each phase."""
    problems: list[Problem] = []
    if has_custom_loop(type(task)):
        return problems
    with seeded(experiment.seed):
        datasets = collect_problems(problems, call_for_mapping, task.data, PHASES_OF_DATA)
    if datasets is None:
        return problems
    collect_problems(problems, check_phases, task, datasets)
    collect_problems(problems, _check_batch_is_filled, experiment, task, datasets.get("train"))
    for phase, dataset in datasets.items():
        collect_problems(problems, _read_first_sample, task, phase, dataset)
    metrics = list_monitored_metrics(experiment)
    return [*dict.fromkeys(problems), *check_phases_of_metrics(metrics, list(datasets))]


def check_phases(task: Task, datasets: Mapping[str, Any]) -> None:
    """Raise ConfigError if there is no training data, or a phase is invalid."""
    misspelled = [] if "train" in datasets else get_close_matches("train", map(str, datasets), n=1)
    errors = [
        _make_phase_error(phase, dataset)
        for phase, dataset in datasets.items()
        if phase not in misspelled
    ]
    messages = [error for error in errors if error]
    if "train" not in datasets:
        names = ", ".join(map(str, datasets)) or "nothing"
        hint = " (did you mean 'train'?)" if misspelled else ""
        messages.insert(0, f"{type(task).__name__}.data() must return 'train', got {names}{hint}")
    if messages:
        raise ConfigError([Problem("task", message) for message in messages])


def _make_phase_error(phase: str, dataset: Any) -> str | None:
    kind, has_name, name = str(phase).partition("/")
    if kind not in PHASES or (has_name and kind == "train"):
        allowed = "phases are train, val, test, and val/NAME and test/NAME for several"
        return f"data() returns a phase '{phase}'; {allowed}"
    if has_name and not _NAME.fullmatch(name):
        return f"data() returns a phase '{phase}'; '{name}' {_NAME_RULE}"
    if _is_ray_dataset(dataset):
        return None
    if not is_map_style(dataset) and not hasattr(dataset, "__iter__"):
        kind = type(dataset).__name__
        return f"the {phase} dataset ({kind}) needs __len__ and __getitem__, or __iter__"
    if get_length(dataset) == 0:
        return _make_empty_error(phase, dataset, "its length is 0")
    return None


def _make_empty_error(phase: str, dataset: Any, reason: str) -> str:
    hint = "" if phase == "train" else f"; to evaluate nothing, leave {phase} out of data()"
    return f"the {phase} data ({type(dataset).__name__}) is empty: {reason}{hint}"


def _check_batch_is_filled(experiment: Experiment, task: Task, train: Any) -> None:
    """Raise ConfigError if `drop_last` leaves no batch, unless the task makes the batches."""
    makes_batches = (type(task).sampler, type(task).loader) != (Task.sampler, Task.loader)
    if not experiment.loader.drop_last or makes_batches or not is_map_style(train):
        return
    ranks = experiment.workers.min_count
    if -(-len(train) // ranks) < experiment.batch_size:
        raise make_drop_last_error(len(train), ranks, experiment.batch_size)


def make_drop_last_error(samples: int, ranks: int, batch_size: int) -> ConfigError:
    size = describe_size(samples, ranks)
    return ConfigError.at(
        "loader.drop_last",
        f"leaves no training batch: {size} do not fill one of batch_size {batch_size}",
    )


def describe_size(samples: int, ranks: int) -> str:
    return f"{format_count(samples, 'sample')} on {format_count(ranks, 'rank')}"


def _read_first_sample(task: Task, phase: str, dataset: Any) -> None:
    """Read a sample, unless the task's own sampler or loader selects it.

    Raises ConfigError if there is none.
    """
    if _is_ray_dataset(dataset) or get_length(dataset) == 0:
        return
    with catch_user_errors(
        "task", f"the first sample of the {phase} data ({type(dataset).__name__}) cannot be read"
    ):
        if is_map_style(dataset):
            if (type(task).sampler, type(task).loader) == (Task.sampler, Task.loader):
                dataset[0]
        elif hasattr(dataset, "__iter__") and next(iter(dataset), _MISSING) is _MISSING:
            raise ConfigError.at("task", _make_empty_error(phase, dataset, "it yields no sample"))


def _is_ray_dataset(dataset: Any) -> bool:
    return type(dataset).__module__.startswith("ray.data")
