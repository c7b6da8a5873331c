"""Ray Data: each rank's share of a dataset that the cluster reads during training. Runs in
workers."""

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.engines.ray_connection import Ray
from orchestrator.errors import ConfigError, raise_problems
from orchestrator.experiment.checks.data_keys import find_keys_of_ray_data
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import data_from_task
from orchestrator.loop.world import World
from orchestrator.task import Task
from orchestrator.units import format_count


class RayShare:
    """This rank's share of a `ray.data.Dataset`, as batches of tensors by column.

    It has no position: each pass begins with the first rows, even after a resume.
    """

    made_by_engine = True

    def __init__(
        self, iterator: Any, batch_size: int, drop_last: bool, batches: int | None
    ) -> None:
        self._iterator = iterator
        self._batches = batches
        self._options = {"batch_size": batch_size, "drop_last": drop_last, "device": "cpu"}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._iterator.iter_torch_batches(**self._options))

    def __len__(self) -> int:
        if self._batches is None:
            raise TypeError("the number of rows is unknown")
        return self._batches

    def state_dict(self) -> None:
        """Return nothing: there is no position."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def data_of(
    task: Task, experiment: Experiment, world: World, *, of_train: bool = False
) -> Mapping[str, Any]:
    """Return a task's data, with this rank's share of each Ray dataset; collective if there is one.

    Starts Ray if this process is in no cluster and the task's module imports `ray.data`. `of_train`
    means that Ray Train has already told Ray Data about its workers. Raises ConfigError if no CPU
    is left for Ray Data.
    """
    if can_use_ray_data(type(task)):
        _start_ray()
    datasets = dict(data_from_task(task, experiment, world))
    module = sys.modules.get("ray.data")
    ray_datasets = {
        phase: data
        for phase, data in datasets.items()
        if module and isinstance(data, module.Dataset)
    }
    if not ray_datasets:
        return datasets
    raise_problems(find_keys_of_ray_data(experiment, datasets))
    message = world.broadcast(lambda: _explain_lack_of_cpus(experiment, world))
    if message:
        raise ConfigError.at("workers.cpus", message)
    shares = {
        phase: _make_share(data, PhaseContext(task, phase, experiment, world), of_train)
        for phase, data in ray_datasets.items()
    }
    return {**datasets, **shares}


def can_use_ray_data(task: type[Task]) -> bool:
    """Return whether Ray Data is loaded, and a module of the task's class imports from ray."""
    return "ray.data" in sys.modules and _imports_ray(task)


def _imports_ray(task: type[Task]) -> bool:
    own_classes = [cls for cls in task.__mro__ if issubclass(cls, Task) and cls is not Task]
    for cls in own_classes:
        module = sys.modules[cls.__module__]
        if any(_is_from_ray(value) for value in vars(module).values()):
            return True
    return False


def _is_from_ray(value: Any) -> bool:
    home = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(home).partition(".")[0] == "ray"


def _start_ray() -> None:
    """Start Ray if this process is in no cluster, and silence Ray Data."""
    import ray

    if not ray.is_initialized():
        Ray().__enter__()
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _explain_lack_of_cpus(experiment: Experiment, world: World) -> str | None:
    """Return an error message if no CPU is left for Ray Data: the ranks keep their CPUs
    during training. Otherwise None."""
    import ray

    cpus = experiment.workers.cpus
    present = ray.cluster_resources().get("CPU", 0)
    taken = cpus * world.world_size
    if world.world_size == 1 or present - taken >= 1:
        return None
    limit = max(0.0, (present - 1) / world.world_size)
    return (
        f"{cpus:g} for each of {format_count(world.world_size, 'rank')} takes {taken:g} of {present:g} CPUs, but"
        f" Ray Data needs one to read; set at most {limit:g}, or join a larger cluster"
    )


def _make_share(dataset: Any, context: PhaseContext, of_train: bool) -> RayShare:
    experiment = context.experiment
    world = context.world
    size = context.batch_size
    batches = None
    if context.is_training and experiment.epochs is not None and experiment.epoch_steps is None:
        rows = world.broadcast(dataset.count) // world.world_size
        batches = rows // size if context.drop_last else -(-rows // size)
    rows_of_rank = _make_iterator(dataset, context, of_train)
    return RayShare(rows_of_rank, size, context.drop_last, batches)


def _make_iterator(dataset: Any, context: PhaseContext, of_train: bool) -> Any:
    """Return an iterator of this rank's rows: the same number on each rank in training, all rows in
    an evaluation."""
    world = context.world
    if world.world_size == 1:
        return dataset.iterator()
    from ray import cloudpickle
    from ray.data import ExecutionResources

    def split() -> list[bytes]:
        taken = context.experiment.workers.bundle
        count = world.world_size
        # Ray Train has already excluded what the ranks take.
        if not of_train:
            dataset.context.execution_options.exclude_resources = ExecutionResources(
                cpu=taken.get("CPU", 0) * count, gpu=taken.get("GPU", 0) * count
            )
        shares = dataset.streaming_split(count, equal=context.is_training)
        return [cloudpickle.dumps(share) for share in shares]

    return cloudpickle.loads(world.broadcast(split)[world.rank])
