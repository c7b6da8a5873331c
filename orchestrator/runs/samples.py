"""From rows back to samples: what a run's batches were made of, by the very code that made them. Needs no Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from hooks import State
from hooks.parts.import_path import extend_import_path
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.errors import ConfigError, UsageError
from orchestrator.loop.data.indexed import Indexed
from orchestrator.loop.data.phases import given_by
from orchestrator.loop.data.stream import is_indexed
from orchestrator.loop.randomness import random_state, restore_random_state, seed_all
from orchestrator.loop.training_cursor import TrainingCursor
from orchestrator.loop.world import World
from orchestrator.records.metadata import Attempt
from orchestrator.records.run_folder import RunFolder
from orchestrator.task import trains_itself

_OF_A_BATCH = ["attempt", "rank", "phase", "epoch"]
"""What names the batches that a rank was given in one go."""


def samples(folder: RunFolder, rows: pd.DataFrame, begins: Mapping[Any, int]) -> pd.DataFrame:
    """A row for each sample of the batches of some rows, which have these columns, `iteration` and those that are kept; with its `index`,
    empty of a stream. `begins` has the first iteration of an evaluation by attempt, rank, phase and epoch.

    The caller's random numbers stay as they are. Raises UsageError where the task, or its data, is not what it was.
    """
    attempts, orders = {attempt.number: attempt for attempt in folder.attempts()}, dict[str, _Order]()
    attempts, orders = {attempt.number: attempt for attempt in folder.attempts()}, dict[str, _Order]()
    rows, before = rows.astype({"phase": "str"}), random_state()
    indices = pd.Series(None, rows.index, dtype=object)
    try:
        for named, group in rows.groupby(_OF_A_BATCH):
            number, rank, phase, epoch = cast(tuple[int, int, str, int], named)
            attempt = attempts[number]
            key = json.dumps(attempt.order and attempt.order.values)
            order = orders[key] = orders.get(key) or _Order(folder, attempt)
            begun = begins[number, rank, phase, epoch] if phase != "train" else None
            given: list[Any] = order.indices(attempt, rank, phase, epoch, group["iteration"], begun)
            indices.loc[group.index] = pd.Series(given, group.index, dtype=object)
    finally:
        restore_random_state(before)
    measured = rows[rows.columns.intersection(["loss"])]
    found = pd.concat([rows[["rank", "phase", "epoch", "iteration"]], indices.rename("index"), measured], axis=1)
    return found.explode("index", ignore_index=True).astype({"index": "Int64"})


def resolved_as_in(folder: RunFolder, attempt: Attempt) -> ResolvedExperiment:
    """A run's experiment with the order of data that an attempt had; raises UsageError where it cannot be built here."""
    source = folder.source()
    extend_import_path([*source.import_paths, Path.cwd()])
    try:
        return resolve(source.with_values(attempt.order.values) if attempt.order else source)
    except ConfigError as error:
        raise UsageError(f"{folder} cannot be gone through again, as its task or a hook cannot be built: {error}") from None


class _Order:
    """The order of the data of attempts that had it alike, from what they wrote down of it."""

    def __init__(self, folder: RunFolder, attempt: Attempt) -> None:
        self._folder, resolved = folder, resolved_as_in(folder, attempt)
        self._task, self._experiment = resolved.task, resolved.experiment
        if trains_itself(type(self._task)):
            raise UsageError(f"the task of {folder} trains by itself, and alone knows which samples its batches had")
        self._is_told_epochs = any(isinstance(hook, DistSamplerSeed) for hook in resolved.hooks.values())
        seed_all(self._experiment.seed)
        self._datasets = given_by(self._task, self._experiment, World())
        self._drawn = random_state()

    def indices(self, attempt: Attempt, rank: int, phase: str, epoch: int, iterations: pd.Series, begun: int | None) -> list[list[int | None]]:
        """The samples of the batches of some iterations, which began with `begun` in an evaluation; for a stream none."""
        if phase not in self._datasets:
            raise UsageError(f"{self._folder} has rows of {phase}, and data() of its task gives {', '.join(self._datasets)} by now")
        if not is_indexed(self._datasets[phase]):
            return [[None] for _ in iterations]
        world = _Recalled(rank, attempt.world_size)
        data = self._data(attempt, phase, world)
        if begun is None:
            first, data.sampler.offset = self._start(attempt, epoch, data, world)
            data.sampler.set_epoch(epoch if self._is_told_epochs else 0)
        batches = list(data.loader.batch_sampler)
        # An evaluation goes through its data once or several times; a training epoch once.
        places = iterations - first - 1 if begun is None else (iterations - begun) % len(batches)
        return [batches[place] for place in places]

    def _data(self, attempt: Attempt, phase: str, world: World) -> Indexed:
        restore_random_state(self._drawn)
        data = Indexed(self._task, self._datasets[phase], phase, self._experiment, world, torch.Generator())
        batches = getattr(data.loader, "batch_sampler", None)
        if getattr(batches, "sampler", None) is not data.sampler:
            raise UsageError(f"loader() of {type(self._task).__name__} makes the batches of {phase} itself, so which samples they had is not known here")
        now, then = data.size, attempt.order.sizes.get(phase) if attempt.order else None
        if then not in (now, None):
            raise UsageError(f"{phase} of {self._folder} had {then:,} samples in attempt {attempt.number}, and has {now:,} by now, so which its batches had is not known")
        if phase == "train" and attempt.epoch_iterations not in (data.length(), None):
            raise UsageError(
                f"an epoch of {self._folder} had {attempt.epoch_iterations:,} iterations in attempt {attempt.number}, and has {data.length():,} with the "
                "experiment and the data as they are now, so which samples its batches had is not known"
            )
        return data

    def _start(self, attempt: Attempt, epoch: int, data: Indexed, world: World) -> tuple[int, int]:
        """The iterations before those that an attempt made of an epoch, and the samples that all ranks had consumed of it before them."""
        state, position = State(), attempt.position
        cursor = TrainingCursor(self._experiment, state, data, world)
        cursor.restore(position)
        if epoch == position.epoch:
            return position.iteration, cursor.consumed()
        rest = cursor.epoch_length - state.phase_iteration
        return position.iteration + rest + (epoch - position.epoch - 1) * data.length(), 0


@dataclass
class _Recalled(World):
    """A rank whose others are not there: they would answer as it does."""

    def __post_init__(self) -> None:
        self._group = None

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size
