"""The order of a run's samples, found by running the code that made its batches again. Does not need
Ray."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from torch.utils.data import BatchSampler

from hooks.import_path import extend_import_path
from hooks.metrics.names import PHASES, list_phases
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import data_from_task
from orchestrator.loop.data.sampling import SeededBatches
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.saving.cursor import EpochProgress, RunCursor
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state, seed_all
from orchestrator.task import has_custom_loop
from orchestrator.units import format_count


def resolve_attempt(folder: RunFolder, attempt: Attempt) -> ResolvedExperiment:
    """Return a run's experiment with the data order of an attempt; raises UsageError if it cannot
    be built here."""
    source = folder.read_source()
    extend_import_path([*source.import_paths, Path.cwd()])
    if attempt.order:
        source = source.with_values(attempt.order.values)
    try:
        return resolve(source)
    except ConfigError as error:
        raise UsageError(
            f"{folder} cannot be repeated, since its task or a hook cannot be built: {error}"
        ) from None


@dataclass(frozen=True)
class RankAttempt:
    """A rank in an attempt of a run."""

    attempt: Attempt
    rank: int


class SampleOrder:
    """The order of a run's samples in the attempts that have the same seed, task and data loaders.

    Changes the random state of this process. Raises UsageError if the task has changed, or has a
    training loop of its own.
    """

    def __init__(self, folder: RunFolder, attempt: Attempt) -> None:
        self._folder = folder
        resolved = resolve_attempt(folder, attempt)
        self._task = resolved.task
        self._experiment = resolved.experiment
        if has_custom_loop(type(self._task)):
            raise UsageError(
                f"the samples of {folder} are unknown, since its task has a training loop of its own (train())"
            )
        self._sets_sampler_epoch = any(
            isinstance(hook, DistSamplerSeed) for hook in resolved.hooks.values()
        )
        seed_all(self._experiment.seed)
        self._datasets = data_from_task(self._task, self._experiment, World())
        self._initial_random_state = random_state()

    def is_iterable(self, phase: str) -> bool:
        """Return whether the dataset of a phase is iterable. Raises UsageError if the phase no
        longer has data."""
        if phase not in self._datasets:
            raise UsageError(
                f"{self._folder} has rows of {phase}, and data() of its task now gives only {', '.join(self._datasets)}"
            )
        return not is_map_style(self._datasets[phase])

    def find_training_samples(
        self, rank: RankAttempt, epoch: int, iterations: Iterable[int]
    ) -> list[list[int]]:
        """Return the dataset indices of the samples in some training iterations of an epoch."""
        data = self._make_data(rank, "train")
        first, offset = self._find_start(rank.attempt, epoch, data)
        data.sampler.begin(epoch, offset)
        data.sampler.set_epoch(epoch if self._sets_sampler_epoch else 0)
        batches = list(data.loader.batch_sampler)
        return [batches[iteration - first - 1] for iteration in iterations]

    def find_evaluation_samples(
        self, rank: RankAttempt, phase: str, start: int, iterations: Iterable[int]
    ) -> list[list[int]]:
        """Return the dataset indices of the samples in some iterations of an evaluation, whose first
        iteration is `start`."""
        data = self._make_data(rank, phase)
        batches = list(data.loader.batch_sampler)
        # An evaluation may iterate over its data several times.
        return [batches[(iteration - start) % len(batches)] for iteration in iterations]

    def _make_data(self, rank: RankAttempt, phase: str) -> MapStyleData:
        """Make the data of a phase as a rank made it in an attempt."""
        world = _ReplayedRank(rank.rank, rank.attempt.world_size)
        restore_random_state(self._initial_random_state)
        phases = self._list_map_style_phases()
        # The task's samplers draw random numbers in order when they are made.
        made = {
            name: MapStyleData(
                PhaseContext(self._task, name, self._experiment, world), self._datasets[name]
            )
            for name in phases[: phases.index(phase) + 1]
        }
        data = made[phase]
        self._check_batches(phase, data)
        self._check_size(rank.attempt, phase, data)
        return data

    def _list_map_style_phases(self) -> list[str]:
        names = chain.from_iterable(list_phases(kind, self._datasets) for kind in PHASES)
        return [name for name in names if not self.is_iterable(name)]

    def _check_batches(self, phase: str, data: MapStyleData) -> None:
        """Raise UsageError if the task's loader chooses the samples of its batches itself."""
        batches = getattr(data.loader, "batch_sampler", None)
        has_known_type = type(batches) in (BatchSampler, SeededBatches)
        if not has_known_type or getattr(batches, "sampler", None) is not data.sampler:
            raise UsageError(
                f"loader() of {type(self._task).__name__} makes the batches of {phase}; their samples are unknown"
            )

    def _check_size(self, attempt: Attempt, phase: str, data: MapStyleData) -> None:
        """Raise UsageError if the data has another size than in an attempt."""
        size_at_attempt = attempt.order.sizes.get(phase) if attempt.order else None
        if size_at_attempt not in (data.size, None):
            samples = format_count(size_at_attempt, "sample")
            raise UsageError(
                f"{phase} of {self._folder} had {samples} in attempt {attempt.number}, but has"
                f" {data.size:,} now"
            )
        if phase == "train" and attempt.epoch_iterations not in (data.length(), None):
            iterations = format_count(attempt.epoch_iterations, "iteration")
            raise UsageError(
                f"an epoch of {self._folder} had {iterations} in attempt {attempt.number},"
                f" but has {data.length():,} now"
            )

    def _find_start(self, attempt: Attempt, epoch: int, data: MapStyleData) -> tuple[int, int]:
        """Return the iterations, and the consumed samples of all ranks, before an attempt's part of
        an epoch."""
        state = LoopState()
        position = attempt.position
        samples = self._experiment.batch_size * attempt.world_size
        progress = EpochProgress(state, data.length, samples)
        RunCursor(state, progress).restore(position)
        if epoch == position.epoch:
            return position.iteration, progress.consumed()
        rest = progress.length - state.phase_iteration
        return position.iteration + rest + (epoch - position.epoch - 1) * data.length(), 0


@dataclass
class _ReplayedRank(World):
    """A rank without its peers. Collectives return its own value, because the peers' values are the
    same."""

    def __post_init__(self) -> None:
        self._group = None

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size

    def broadcast(self, make: Callable[[], Any]) -> Any:
        return make()

    def barrier(self) -> None: ...

    def maximum(self, values: list[float]) -> list[float]:
        return values
