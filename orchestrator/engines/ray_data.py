"""Ray Data: each rank's part of a dataset that the cluster reads and decodes beside the training. Worker process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.sections.experiment import Experiment
from orchestrator.engines.ray_environment import Ray
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.data.phases import given_by
from orchestrator.loop.world import World
from orchestrator.task import Task


class RayShare:
    """This rank's part of a `ray.data.Dataset`, as batches of tensors by column.

    It keeps no place: in each pass its rows come anew, and so they do after a resume. Source: Ray's `streaming_split`.
    """

    made_by_engine = True

    def __init__(self, iterator: Any, batch_size: int, drop_last: bool, batches: int | None) -> None:
        self._iterator, self._batches = iterator, batches
        self._options = {"batch_size": batch_size, "drop_last": drop_last, "device": "cpu"}

    def set_epoch(self, epoch: int) -> None:
        """A dataset that shuffles (`random_shuffle`) does so anew in each pass by itself."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._iterator.iter_torch_batches(**self._options))

    def __len__(self) -> int:
        if self._batches is None:
            raise TypeError("how many rows there are was not asked for")
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing: there is no place."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begins anew."""


def data_of(task: Task, experiment: Experiment, world: World, *, of_train: bool = False) -> Mapping[str, Any]:
    """What a task gives as its data, with this rank's part of each Ray dataset; collective where there is one. Starts
    Ray where this process has none and the task's module has imported `ray.data`. With `of_train` the ranks are workers
    of Ray Train, which tells Ray Data of them. Raises ConfigError where nothing is left of the cluster for the data."""
    if "ray.data" in sys.modules and _imports_ray(type(task)):
        _begin()
    datasets = dict(given_by(task, experiment, world))
    module = sys.modules.get("ray.data")
    of_ray = {phase: one for phase, one in datasets.items() if module and isinstance(one, module.Dataset)}
    if not of_ray:
        return datasets
    if len(of_ray) == len(datasets):
        _refuse_unread(experiment)
    message = world.broadcast(lambda: _no_room(experiment, world))
    if message:
        raise ConfigError([Problem("workers.cpus", message)])
    return {
        **datasets,
        **{phase: _share(dataset, phase, experiment, world, of_train) for phase, dataset in of_ray.items()},
    }


def _imports_ray(task: type[Task]) -> bool:
    """Whether a module of a task's class has something of Ray's: others train in processes that know Ray too."""
    modules = [sys.modules[cls.__module__] for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task]
    homes = (
        getattr(value, "__module__", None) or getattr(value, "__name__", "")
        for module in modules
        for value in vars(module).values()
    )
    return any(str(home).partition(".")[0] == "ray" for home in homes)


def _begin() -> None:
    """Starts Ray where this process has none, and quiets what Ray Data says of each pass."""
    import ray

    if not ray.is_initialized():
        Ray().__enter__()
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False


def _refuse_unread(experiment: Experiment) -> None:
    unread = {
        "loader.num_workers": experiment.loader.num_workers != 0,
        "loader.pin_memory": experiment.loader.pin_memory is not None,
    }
    message = "is read by nothing: the data is Ray Data's, whose own tasks read it"
    if any(unread.values()):
        raise ConfigError([Problem(path, message) for path, is_unread in unread.items() if is_unread])


def _no_room(experiment: Experiment, world: World) -> str | None:
    """Why Ray Data would wait for ever: ranks keep their CPUs for as long as they train."""
    import ray

    present, taken = ray.cluster_resources().get("CPU", 0), experiment.workers.cpus * world.world_size
    if world.world_size == 1 or present - taken >= 1:
        return None
    return (
        f"is {experiment.workers.cpus:g}, so that {world.world_size} ranks take {taken:g} of the {present:g} CPUs there"
        f" are, and Ray Data needs one to read with; write {max(0.0, (present - 1) / world.world_size):g} or less, or"
        " join a cluster with more"
    )


def _share(dataset: Any, phase: str, experiment: Experiment, world: World, of_train: bool) -> RayShare:
    trains, options = phase == "train", experiment.loader
    size = experiment.batch_size if trains else options.eval_batch_size or experiment.batch_size
    drop_last = trains and options.drop_last
    rows = None
    if trains and experiment.epochs is not None and experiment.epoch_steps is None:
        rows = world.broadcast(dataset.count) // world.world_size
    batches = None if rows is None else rows // size if drop_last else -(-rows // size)
    return RayShare(_iterator(dataset, trains, experiment, world, of_train), size, drop_last, batches)


def _iterator(dataset: Any, trains: bool, experiment: Experiment, world: World, of_train: bool) -> Any:
    """What gives this rank's rows: as many to each rank in training, all of them in an evaluation."""
    if world.world_size == 1:
        return dataset.iterator()
    from ray import cloudpickle
    from ray.data import ExecutionResources

    def split() -> list[bytes]:
        taken, count = experiment.workers.bundle(), world.world_size
        if not of_train:  # taken off twice, nothing may be left, and each task waits until Ray Data finds itself idle
            dataset.context.execution_options.exclude_resources = ExecutionResources(
                cpu=taken.get("CPU", 0) * count, gpu=taken.get("GPU", 0) * count
            )
        return [cloudpickle.dumps(one) for one in dataset.streaming_split(count, equal=trains)]

    return cloudpickle.loads(world.broadcast(split)[world.rank])
