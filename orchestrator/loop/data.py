"""Data: who gets which sample, in which order, and where an epoch stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, Sampler

from hooks import Rhythm
from orchestrator.config.experiment import Experiment
from orchestrator.errors import ConfigError, Problem
from orchestrator.loop.batches import batches_of
from orchestrator.loop.randomness import with_own_generators
from orchestrator.loop.transfer import to_device
from orchestrator.loop.world import World
from orchestrator.task import Task


class ShardedSampler(Sampler[int]):
    """This rank's share of a dataset, which can begin in the middle of an epoch. Worker process.

    With `shuffle` and `even`, the order and the shares are those of torch's DistributedSampler. `even` repeats a few
    samples so that all ranks have the same number, as training needs; without it every sample is seen exactly once.
    `offset` counts the samples all ranks together have consumed of this epoch: because shares are interleaved these
    are a prefix of the epoch's order, so an epoch may be resumed with another number of ranks.
    """

    def __init__(self, length: int, rank: int, world_size: int, *, shuffle: bool, even: bool, seed: int = 0) -> None:
        self.length, self.rank, self.world_size = length, rank, world_size
        self.shuffle, self.even, self.seed = shuffle, even, seed
        self.epoch = 0
        self.offset = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch; does not move the offset."""
        self.epoch = epoch

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        rest = order[self.offset :]
        if self.even and rest:
            missing = -len(rest) % self.world_size
            rest += (order * (missing // len(order) + 1))[:missing]
        return iter(rest[self.rank :: self.world_size])

    def __len__(self) -> int:
        rest = max(0, self.length - self.offset)
        return -(-(rest if self.even else rest - self.rank) // self.world_size)


class Data:
    """The loaders of all phases, and the training sampler's place in its epoch. Worker process."""

    def __init__(self, task: Task, experiment: Experiment, world: World) -> None:
        self._task, self._experiment, self._world = task, experiment, world
        self._datasets: dict[str, Any] = dict(task.data())
        if "train" not in self._datasets:
            raise ConfigError([Problem("task", f"{type(task).__name__}.data() gives no 'train', only {sorted(self._datasets)}")])
        for phase, dataset in self._datasets.items():
            self._check(phase, dataset)
        self._refuse_unread()
        self._generator = torch.Generator()
        self.sampler = self._shard("train", shuffle=True, even=True)
        self.loaders = {"train": self._loader("train", self.sampler)}
        for phase in ("val", "test"):
            if phase in self._datasets:
                self.loaders[phase] = self._loader(phase, self._shard(phase, shuffle=False, even=False))
        if self.epoch_length() == 0:
            size = f"{len(self._datasets['train'])} samples on {world.world_size} ranks"
            message = f"leaves no training batch: {size} do not fill one of batch_size {experiment.batch_size}"
            raise ConfigError([Problem("loader.drop_last", message)])

    def _refuse_unread(self) -> None:
        """Raises ConfigError for what is said of evaluations that there are none of."""
        experiment, default = self._experiment, Experiment.model_fields["validate_every"].default
        unread = {
            "validate_every": "val" not in self._datasets and experiment.validate_every not in (default, Rhythm(0)),
            "loader.eval_batch_size": len(self._datasets) == 1 and experiment.loader.eval_batch_size is not None,
        }
        message = f"is read by nothing: {type(self._task).__name__}.data() gives {' and '.join(self._datasets)} alone"
        if any(unread.values()):
            raise ConfigError([Problem(path, message) for path, is_unread in unread.items() if is_unread])

    def _check(self, phase: str, dataset: Any) -> None:
        if phase not in ("train", "val", "test"):
            raise ConfigError([Problem("task", f"data() gives a phase '{phase}'; phases are train, val and test")])
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError([Problem("task", f"the {phase} dataset ({type(dataset).__name__}) has no length or no index; a map-style dataset is needed")])
        if phase == "train" and len(dataset) == 0:
            raise ConfigError([Problem("task", "the train dataset is empty")])
        if phase != "train" and len(dataset) < self._world.world_size and self._task.meters():
            message = f"has meters, which need a {phase} sample on each rank; there are {len(dataset)} for {self._world.world_size} ranks"
            raise ConfigError([Problem("task", message)])

    def _shard(self, phase: str, *, shuffle: bool, even: bool) -> ShardedSampler:
        return ShardedSampler(
            len(self._datasets[phase]), self._world.rank, self._world.world_size, shuffle=shuffle, even=even, seed=self._experiment.seed
        )

    def _loader(self, phase: str, sampler: ShardedSampler) -> Any:
        options = self._experiment.loader
        training = phase == "train"
        size = self._experiment.batch_size if training else options.eval_batch_size or self._experiment.batch_size
        batches = BatchSampler(sampler, size, drop_last=training and options.drop_last)
        pinned = self._world.device.type == "cuda" if options.pin_memory is None else options.pin_memory
        # A generator of its own: making an iterator must not draw from the generators that a resume restores.
        arguments: dict[str, Any] = {"generator": self._generator, "pin_memory": pinned}
        if options.num_workers:
            arguments |= {"num_workers": options.num_workers, "persistent_workers": True}
        return self._task.loader(self._datasets[phase], batches, phase, arguments)

    def epoch_length(self) -> int:
        """Training iterations in a whole epoch, the same on every rank."""
        offset, self.sampler.offset = self.sampler.offset, 0
        length = len(self.loaders["train"])
        self.sampler.offset = offset
        return length

    def train_iterator(self, epoch: int, offset: int) -> Iterator[Any]:
        """The training batches of this rank from `offset` on, which counts the samples of all ranks."""
        self.sampler.offset = offset
        self._generator.manual_seed(self._experiment.seed * 1_000_003 + epoch * 1_009 + self._world.rank)
        return batches_of(self.loaders["train"], "train")

    def close(self) -> None:
        """Lets the loaders go, and with them their processes: left to the garbage collector, these end late and slowly."""
        self.loaders.clear()

    def first_sample(self, phase: str) -> Any:
        """A batch of the first sample of a phase, on the device, the same on each rank and each time."""
        loader = self._task.loader(self._datasets[phase], BatchSampler([0], 1, drop_last=False), phase, {"generator": self._generator})
        return to_device(next(with_own_generators(batches_of(loader, phase), self._experiment.seed)), self._world.device)

    def fresh_batches(self, phase: str, *, shuffled: bool = False) -> Iterator[Any]:
        """This rank's batches of a phase once, on the device, the same each time: in the order of the dataset, or
        shuffled; neither the training order nor its random numbers are disturbed."""
        loader = self._loader(phase, self._shard(phase, shuffle=shuffled, even=False))
        return (to_device(batch, self._world.device) for batch in with_own_generators(batches_of(loader, phase), self._experiment.seed))
