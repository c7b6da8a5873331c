"""From rows back to samples: what a run's batches were made of, by the very code that made them. Needs no Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from torch.utils.data import BatchSampler

from hooks import State
from hooks.import_path import extend_import_path
from hooks.metrics.names import PHASES, phases_of
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.config.checks.data import is_indexed
from orchestrator.config.resolve import ResolvedExperiment, resolve
from orchestrator.errors import ConfigError, UsageError
from orchestrator.loop.data.indexed import Indexed
from orchestrator.loop.data.phases import given_by
from orchestrator.loop.data.sharding import SeededBatches
from orchestrator.loop.state.cursor import TrainingCursor
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state, seed_all
from orchestrator.records.metadata import Attempt
from orchestrator.records.run_folder import RunFolder
from orchestrator.task import trains_itself

_OF_A_BATCH = ["attempt", "rank", "phase", "epoch"]
"""What names the batches that a rank was given in one go."""


def samples(folder: RunFolder, rows: pd.DataFrame, begins: Mapping[Any, int]) -> pd.DataFrame:
    """A row for each sample of the batches of some rows, which have these columns, `iteration` and those that are kept;
    with its `index`, or of a stream its `position`, which rows of training tell by `samples` and `batch_size`. `begins`
    has the first iteration of an evaluation by attempt, rank, phase and epoch.

    The caller's random numbers stay as they are. Raises UsageError where the task, or its data, is not what it was.
    """
    attempts, orders = {attempt.number: attempt for attempt in folder.attempts()}, dict[str, _Order]()
    if lost := sorted({*rows["attempt"]} - attempts.keys()):
        raise folder.lost_attempt(lost[0])
    rows, before = rows.astype({"phase": "str"}), random_state()
    places, of_stream = pd.Series(None, rows.index, dtype=object), pd.Series(False, rows.index)
    try:
        for named, group in rows.groupby(_OF_A_BATCH):
            number, rank, phase, epoch = cast(tuple[int, int, str, int], named)
            attempt = attempts[number]
            key = json.dumps(attempt.order and attempt.order.values)
            order = orders[key] = orders.get(key) or _Order(folder, attempt)
            begun = begins[number, rank, phase, epoch] if phase != "train" else None
            of_stream[group.index] = order.is_stream(phase)
            given: list[Any] = (
                _read(group)
                if order.is_stream(phase)
                else order.indices(attempt, int(rank), phase, int(epoch), group["iteration"], begun)
            )
            places.loc[group.index] = pd.Series(given, group.index, dtype=object)
    finally:
        restore_random_state(before)
    measured = rows[rows.columns.intersection(["loss"])]
    found = pd.concat(
        [rows[["rank", "phase", "epoch", "iteration"]], places.rename("index"), measured, of_stream.rename("position")],
        axis=1,
    )
    found = found.explode("index", ignore_index=True).astype({"index": "Int64"})
    streamed = found.pop("position").astype(bool)
    if not streamed.any():
        return found
    found.insert(5, "position", found["index"].where(streamed))
    return found.assign(index=found["index"].mask(streamed))


def _read(rows: pd.DataFrame) -> list[list[int | None]]:
    """Of each batch that a rank was given of a stream, which of all the samples that it had read they are; not known in
    an evaluation."""
    if rows["phase"].iloc[0] != "train":
        return [[None]] * len(rows)
    return [[*range(read - size, read)] for read, size in zip(rows["samples"], rows["batch_size"], strict=True)]


def resolved_as_in(folder: RunFolder, attempt: Attempt) -> ResolvedExperiment:
    """A run's experiment with the order of data that an attempt had; raises UsageError where it cannot be built
    here."""
    source = folder.source()
    extend_import_path([*source.import_paths, Path.cwd()])
    try:
        return resolve(source.with_values(attempt.order.values) if attempt.order else source)
    except ConfigError as error:
        raise UsageError(
            f"{folder} cannot be gone through again, as its task or a hook cannot be built: {error}"
        ) from None


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

    def is_stream(self, phase: str) -> bool:
        """Whether the data of a phase has no index; raises UsageError where there is none by now."""
        if phase not in self._datasets:
            raise UsageError(
                f"{self._folder} has rows of {phase}, and data() of its task gives {', '.join(self._datasets)} by now"
            )
        return not is_indexed(self._datasets[phase])

    def indices(
        self, attempt: Attempt, rank: int, phase: str, epoch: int, iterations: pd.Series, begun: int | None
    ) -> list[list[int]]:
        """The samples of the batches of some iterations, which began with `begun` in an evaluation."""
        world = _Recalled(rank, attempt.world_size)
        data = self._data(attempt, phase, world)
        if begun is None:
            first, offset = self._start(attempt, epoch, data, world)
            data.sampler.begin(epoch, offset)
            data.sampler.set_epoch(epoch if self._is_told_epochs else 0)
        batches = list(data.loader.batch_sampler)
        # An evaluation goes through its data once or several times; a training epoch once.
        places = iterations - first - 1 if begun is None else (iterations - begun) % len(batches)
        return [batches[place] for place in places]

    def _data(self, attempt: Attempt, phase: str, world: World) -> Indexed:
        restore_random_state(self._drawn)
        # What the task's samplers draw as they are made, they draw one after the other.
        for name in (one for kind in PHASES for one in phases_of(kind, self._datasets) if not self.is_stream(one)):
            data = Indexed(self._task, self._datasets[name], name, self._experiment, world, torch.Generator())
            if name == phase:
                break
        batches = getattr(data.loader, "batch_sampler", None)
        if type(batches) not in (BatchSampler, SeededBatches) or getattr(batches, "sampler", None) is not data.sampler:
            raise UsageError(
                f"loader() of {type(self._task).__name__} makes the batches of {phase} itself, so which samples they"
                " had is not known here"
            )
        now, then = data.size, attempt.order.sizes.get(phase) if attempt.order else None
        if then not in (now, None):
            raise UsageError(
                f"{phase} of {self._folder} had {then:,} samples in attempt {attempt.number}, and has {now:,} by now,"
                " so which its batches had is not known"
            )
        if phase == "train" and attempt.epoch_iterations not in (data.length(), None):
            raise UsageError(
                f"an epoch of {self._folder} had {attempt.epoch_iterations:,} iterations in attempt {attempt.number},"
                f" and has {data.length():,} with the experiment and the data as they are now, so which samples its"
                " batches had is not known"
            )
        return data

    def _start(self, attempt: Attempt, epoch: int, data: Indexed, world: World) -> tuple[int, int]:
        """The iterations before those that an attempt made of an epoch, and the samples that all ranks had consumed of
        it before them."""
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
