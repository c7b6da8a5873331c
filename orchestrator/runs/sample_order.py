"""The order of a run's samples, found by running the code that made its batches again. Does not need
Ray."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from torch.utils.data import BatchSampler

from hooks.metrics.names import PHASES, list_phases
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.attempts import ADVICE, Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import data_from_task
from orchestrator.loop.data.sampling import SeededBatches
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.saving.cursor import EpochProgress, RunCursor
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state, seed_all
from orchestrator.runs.attempt_experiment import resolve_attempt
from orchestrator.task import Task, has_custom_loop
from orchestrator.units import format_count, number_epoch


@dataclass(frozen=True)
class SampleOrder:
    """The order of a run's samples in the attempts that have the same seed, task and data
    loaders."""

    folder: RunFolder
    experiment: Experiment
    task: Task
    datasets: Mapping[str, Any]
    random_state: dict[str, Any]
    """Random state in which the ranks made their data loaders."""
    sets_sampler_epoch: bool
    """True if a hook gives each epoch another order; False if all epochs have that of the first."""

    @classmethod
    def build(cls, folder: RunFolder, attempt: Attempt) -> Self:
        """Build the task of an attempt and load its data; changes the random state of this process.

        Raises UsageError if the task cannot be built, or has a training loop of its own.
        """
        resolved = resolve_attempt(folder, attempt)
        if has_custom_loop(type(resolved.task)):
            raise UsageError(
                f"the samples of {folder} are unknown, since its task has a training loop of its own (train())"
            )
        seed_all(resolved.experiment.seed)
        datasets = data_from_task(resolved.task, resolved.experiment, World())
        hooks = resolved.hooks.values()
        return cls(
            folder=folder,
            experiment=resolved.experiment,
            task=resolved.task,
            datasets=datasets,
            random_state=random_state(),
            sets_sampler_epoch=any(isinstance(hook, DistSamplerSeed) for hook in hooks),
        )

    def of_rank(self, attempt: Attempt, rank: int) -> "RankOrder":
        """Return the order of a rank's samples in an attempt; changes the random state of this
        process."""
        world = _RankWithoutPeers(rank, attempt.world_size)
        # The task's samplers take random numbers in order when they are made.
        restore_random_state(self.random_state)
        names = chain.from_iterable(list_phases(kind, self.datasets) for kind in PHASES)
        phases = {
            name: MapStyleData(
                PhaseContext(self.task, name, self.experiment, world), self.datasets[name]
            )
            for name in names
            if is_map_style(self.datasets[name])
        }
        return RankOrder(self, attempt, phases)


class RankOrder:
    """The order of a rank's samples in an attempt. Raises UsageError if the task has changed."""

    def __init__(
        self, order: SampleOrder, attempt: Attempt, phases: Mapping[str, MapStyleData]
    ) -> None:
        self._order = order
        self._attempt = attempt
        self._phases = phases

    def is_iterable(self, phase: str) -> bool:
        """Return whether the dataset of a phase is iterable. Raises UsageError if the phase no
        longer has data."""
        datasets = self._order.datasets
        if phase not in datasets:
            raise UsageError(
                f"{self._order.folder} has rows of {phase}, and data() of its task now gives only {', '.join(datasets)}"
            )
        return phase not in self._phases

    def find_training_samples(self, epoch: int, iterations: Iterable[int]) -> list[list[int]]:
        """Return the dataset indices of the samples in some training iterations of an epoch."""
        data = self._get_data("train")
        first, offset = self._find_start(epoch, data)
        data.sampler.begin(epoch, offset)
        data.sampler.set_epoch(epoch if self._order.sets_sampler_epoch else 0)
        batches = list(data.loader.batch_sampler)
        return [self._get_batch(batches, first, iteration, epoch) for iteration in iterations]

    def find_evaluation_samples(
        self, phase: str, start: int, iterations: Iterable[int]
    ) -> list[list[int]]:
        """Return the dataset indices of the samples in some iterations of an evaluation, whose first
        iteration is `start`."""
        batches = list(self._get_data(phase).loader.batch_sampler)
        # An evaluation may iterate over its data several times.
        return [batches[(iteration - start) % len(batches)] for iteration in iterations]

    def _get_data(self, phase: str) -> MapStyleData:
        data = self._phases[phase]
        self._check_batches(phase, data)
        self._check_size(phase, data)
        return data

    def _check_batches(self, phase: str, data: MapStyleData) -> None:
        """Raise UsageError if the task's loader chooses the samples of its batches itself."""
        batches = getattr(data.loader, "batch_sampler", None)
        has_known_type = type(batches) in (BatchSampler, SeededBatches)
        if not has_known_type or getattr(batches, "sampler", None) is not data.sampler:
            raise UsageError(
                f"loader() of {type(self._order.task).__name__} makes the batches of {phase}; their samples are unknown"
            )

    def _check_size(self, phase: str, data: MapStyleData) -> None:
        """Raise UsageError if the data has another size than in the attempt."""
        attempt = self._attempt
        folder = self._order.folder
        size_at_attempt = attempt.order.sizes.get(phase) if attempt.order else None
        if size_at_attempt is not None and size_at_attempt != data.size:
            samples = format_count(size_at_attempt, "sample")
            raise UsageError(
                f"{phase} of {folder} had {samples} in attempt {attempt.number}, but has"
                f" {data.size:,} now"
            )
        if phase != "train" or attempt.epoch_iterations is None:
            return
        length = data.length()
        if attempt.epoch_iterations != length:
            iterations = format_count(attempt.epoch_iterations, "iteration")
            raise UsageError(
                f"an epoch of {folder} had {iterations} in attempt {attempt.number}, but has"
                f" {length:,} now"
            )

    def _find_start(self, epoch: int, data: MapStyleData) -> tuple[int, int]:
        """Return the iterations, and the consumed samples of all ranks, before the attempt's part of
        an epoch."""
        state = LoopState()
        position = self._attempt.position
        samples = self._order.experiment.batch_size * self._attempt.world_size
        progress = EpochProgress(state, data.length, samples)
        RunCursor(state, progress).restore(position)
        if epoch == position.epoch:
            return position.iteration, progress.consumed()
        rest = progress.length - state.phase_iteration
        return position.iteration + rest + (epoch - position.epoch - 1) * data.length(), 0

    def _get_batch(
        self, batches: Sequence[list[int]], first: int, iteration: int, epoch: int
    ) -> list[int]:
        """Return the batch of an iteration, where `first` iterations precede the batches; raises
        UsageError if there is none."""
        last = first + len(batches)
        if not first < iteration <= last:
            raise UsageError(
                f"{self._order.folder} has a row of iteration {iteration} in epoch"
                f" {number_epoch(epoch)}, of which attempt {self._attempt.number} trained iterations"
                f" {first + 1} to {last} by its attempt.json. {ADVICE}"
            )
        return batches[iteration - first - 1]


class _RankWithoutPeers(World):
    """A rank without its peers. Collectives return its own value, because the peers' values are the
    same."""

    def _make_group(self) -> None:
        return None

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return make()

    def barrier(self) -> None: ...

    def maximum(self, values: list[float]) -> list[float]:
        return values
