"""Checks of the data that a task returns for its phases, as far as possible before a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import ConfigError, Problem, find_problems
from orchestrator.experiment.checks.data_keys import find_key_problems
from orchestrator.experiment.checks.datasets import get_length, is_map_style, is_ray_dataset
from orchestrator.experiment.checks.iterable_data import check_iterable_data
from orchestrator.experiment.checks.metrics import check_phases_of_metrics, list_monitored_metrics
from orchestrator.experiment.checks.phases import (
    PHASES_OF_DATA,
    check_loss,
    check_meters,
    find_phase_problems,
    list_run_phases,
    make_empty_error,
)
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.yaml.dotted_paths import is_within
from orchestrator.randomness import seeded
from orchestrator.task import Task, has_custom_loop
from orchestrator.units import format_count
from orchestrator.user_code.failures import call_for_mapping, catch_user_errors

_KEYS_OF_DATA = (
    "task",
    "task_args",
    "batch_size",
    "epochs",
    "steps",
    "epoch_steps",
    "loader",
    "validate_every",
)
"""Keys of which a run checks whether they fit its data."""
_MISSING = object()


def check_data(experiment: Experiment, task: Task) -> Iterator[Problem]:
    """Yield the problems of a task's data, down to the first sample of each phase."""
    if has_custom_loop(type(task)):
        return
    try:
        with seeded(experiment.seed):
            datasets = call_for_mapping(task.data, PHASES_OF_DATA)
    except ConfigError as error:
        yield from error.problems
        return

    # Reading the first sample may find what a check of the settings has found.
    yield from dict.fromkeys(_check_datasets(experiment, task, datasets))
    metrics = list_monitored_metrics(experiment)
    yield from check_phases_of_metrics(metrics, list(datasets))


def _check_datasets(
    experiment: Experiment, task: Task, datasets: Mapping[str, Any]
) -> Iterator[Problem]:
    of_phases = list(find_phase_problems(task, datasets))
    yield from of_phases
    if not of_phases and not _is_data_swept(experiment):
        yield from _find_refused_settings(experiment, task, datasets)
    for phase, dataset in datasets.items():
        yield from find_problems(_read_first_sample, task, phase, dataset)


# The settings that the data must fit


def _is_data_swept(experiment: Experiment) -> bool:
    """Return whether a sweep changes the data, or a key that must fit them; each trial checks its
    own when it starts."""
    sweep = experiment.sweep
    if sweep is None:
        return False
    return any(map(_concerns_data, [*sweep.space, sweep.repeated_path]))


def _concerns_data(path: str) -> bool:
    return any(is_within(path, key) for key in _KEYS_OF_DATA)


def _find_refused_settings(
    experiment: Experiment, task: Task, datasets: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield what a run with these data would refuse when it starts."""
    yield from find_key_problems(experiment, task, datasets)
    yield from find_problems(check_loss, task, list_run_phases(experiment, datasets))
    yield from find_problems(_check_batch_is_filled, experiment, task, datasets["train"])
    for phase, dataset in datasets.items():
        yield from find_problems(_check_phase, experiment, task, phase, dataset)


def _check_phase(experiment: Experiment, task: Task, phase: str, dataset: Any) -> None:
    if is_ray_dataset(dataset):
        return
    if is_map_style(dataset):
        if type(task).sampler is Task.sampler:
            check_meters(experiment, task, phase, len(dataset), experiment.workers.min_count)
        return
    with catch_user_errors("task", f"the {phase} data ({type(dataset).__name__}) cannot be read"):
        check_iterable_data(experiment, task, phase, dataset)


def _check_batch_is_filled(experiment: Experiment, task: Task, train: Any) -> None:
    """Raise ConfigError if `drop_last` leaves no batch, unless the task makes the batches."""
    makes_batches = (type(task).sampler, type(task).loader) != (Task.sampler, Task.loader)
    if not experiment.loader.drop_last or makes_batches or not is_map_style(train):
        return
    ranks = experiment.workers.min_count
    if -(-len(train) // ranks) < experiment.batch_size:
        raise make_drop_last_error(len(train), ranks, experiment.batch_size)


def make_drop_last_error(samples: int, ranks: int, batch_size: int) -> ConfigError:
    """Return the error of training data that fill no batch, of which `drop_last` leaves nothing."""
    size = describe_size(samples, ranks)
    return ConfigError.at(
        "loader.drop_last",
        f"leaves no training batch: {size} do not fill one of batch_size {batch_size}",
    )


def describe_size(samples: int, ranks: int) -> str:
    """Return the size of a dataset as text: `3 samples on 2 ranks`."""
    return f"{format_count(samples, 'sample')} on {format_count(ranks, 'rank')}"


# Samples


def _read_first_sample(task: Task, phase: str, dataset: Any) -> None:
    """Read a sample, unless the task's own sampler or loader selects it.

    Raises ConfigError if there is none.
    """
    if is_ray_dataset(dataset) or get_length(dataset) == 0:
        return
    with catch_user_errors(
        "task", f"the first sample of the {phase} data ({type(dataset).__name__}) cannot be read"
    ):
        if is_map_style(dataset):
            if (type(task).sampler, type(task).loader) == (Task.sampler, Task.loader):
                dataset[0]
        elif hasattr(dataset, "__iter__") and next(iter(dataset), _MISSING) is _MISSING:
            raise ConfigError.at("task", make_empty_error(phase, dataset, "it yields no sample"))
