"""Checks of the keys of an experiment about its data: those that the data leaves without effect are
problems."""

from collections.abc import Iterator, Mapping
from typing import Any

from hooks import Interval
from hooks.metrics.names import list_phases
from orchestrator.errors import Problem
from orchestrator.experiment.checks.datasets import is_loader, is_map_style, is_ray_dataset
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.task import Task


def find_key_problems(
    experiment: Experiment, task: Task, datasets: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each key that does not fit the data of the phases, which are valid."""
    workers = experiment.workers
    if not is_map_style(datasets["train"]) and workers.min_count < workers.max_count:
        yield Problem(
            "workers.count",
            f"must be one number, as the train data is iterable, got {workers.count}",
        )
    unread = [
        *_find_keys_of_iterable_data(experiment, datasets["train"]),
        *_find_keys_of_loaders(experiment, task, datasets),
        *_find_keys_of_evaluations(experiment, task, datasets),
    ]
    for path, reason in unread:
        yield Problem(path, f"has no effect: {reason}")
    yield from find_keys_of_ray_data(experiment, datasets)


def _find_keys_of_iterable_data(experiment: Experiment, train: Any) -> Iterator[tuple[str, str]]:
    """Yield keys for iterable datasets, with the reason why they have no effect."""
    if not is_map_style(train):
        return
    reason = f"the train data ({type(train).__name__}) is map-style, so an epoch is one pass over its samples"
    if experiment.epoch_steps is not None:
        yield "epoch_steps", reason
    if experiment.loader.on_exhausted != "restart":
        yield "loader.on_exhausted", reason


def _find_keys_of_loaders(
    experiment: Experiment, task: Task, datasets: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield keys for loaders, which the loop makes for each phase unless the task returns one."""
    options = experiment.loader
    loaded = {phase for phase, data in datasets.items() if not _is_own_loader(data)}
    loads_evaluation = bool(loaded - {"train"})
    sets_eval_size = options.eval_batch_size is not None
    sets_size = experiment.batch_size != Experiment.model_fields["batch_size"].default
    reason = f"{type(task).__name__}.data() returns its own loaders; set it there"
    if sets_size and "train" not in loaded and (not loads_evaluation or sets_eval_size):
        yield "batch_size", reason
    if options.num_workers != 0 and not loaded:
        yield "loader.num_workers", reason
    if options.pin_memory is not None and not loaded:
        yield "loader.pin_memory", reason
    if options.drop_last and "train" not in loaded:
        yield "loader.drop_last", reason
    if sets_eval_size and len(datasets) > 1 and not loads_evaluation:
        yield "loader.eval_batch_size", reason


def _is_own_loader(data: Any) -> bool:
    return is_loader(data) and not hasattr(data, "made_by_engine")


def _find_keys_of_evaluations(
    experiment: Experiment, task: Task, datasets: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield keys for evaluations, which need data."""
    reason = f"{type(task).__name__}.data() returns only {', '.join(datasets)}"
    if experiment.loader.eval_batch_size is not None and len(datasets) == 1:
        yield "loader.eval_batch_size", reason
    default = Experiment.model_fields["validate_every"].default
    is_set = experiment.validate_every not in (default, Interval(0))
    if is_set and not list_phases("val", datasets):
        yield "validate_every", reason


def find_keys_of_ray_data(experiment: Experiment, datasets: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each key of loader processes if Ray Data reads all phases."""
    if not all(map(is_ray_dataset, datasets.values())):
        return
    message = "has no effect with Ray Data, which reads the data in its own tasks; remove it"
    if experiment.loader.num_workers != 0:
        yield Problem("loader.num_workers", message)
    if experiment.loader.pin_memory is not None:
        yield Problem("loader.pin_memory", message)
