"""The samples of a run's batches, found by running the code that made the batches again. Does not
need Ray."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pandas as pd
from torch.utils.data import BatchSampler

from hooks.import_path import extend_import_path
from hooks.metrics.names import PHASES, list_phases
from hooks.training.sampler_seed import DistSamplerSeed
from orchestrator.disk.attempts import Attempt, make_lost_attempt_error
from orchestrator.disk.rows.columns import ROW_KEY
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import ConfigError, UsageError
from orchestrator.experiment.checks.datasets import is_map_style
from orchestrator.experiment.resolve import ResolvedExperiment, resolve
from orchestrator.loop.data.map_style import MapStyleData
from orchestrator.loop.data.phase_data import PhaseContext
from orchestrator.loop.data.phases import data_from_task
from orchestrator.loop.data.sampling import SeededBatches
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.state.cursor import EpochProgress, RunCursor
from orchestrator.loop.world import World
from orchestrator.randomness import random_state, restore_random_state, seed_all
from orchestrator.runs.stats import list_row_columns, load_rows, open_rows, restrict_phase
from orchestrator.task import has_custom_loop
from orchestrator.units import format_count

_GROUP_COLUMNS = ["attempt", "rank", "phase", "epoch"]
"""Columns that identify a rank's consecutive batches."""


def load_samples(folder: RunFolder, where: str | None, rank: int | None) -> pd.DataFrame:
    """Return the samples of each batch whose row matches a condition, by default those of `train`,
    on all ranks or one."""
    condition = restrict_phase(folder, where)
    if rank is not None:
        _check_rank(folder, rank)
        is_rank = f"rank = {rank}"
        condition = is_rank if condition is None else f"{is_rank} and ({condition}\n)"

    recorded = list_row_columns(folder)
    value_columns = [name for name in ("loss", "samples", "batch_size") if name in recorded]
    rows = load_rows(folder, [*_GROUP_COLUMNS, "iteration", *value_columns], condition)
    begins: dict[Any, int] = {}
    if (rows["phase"] != "train").any():
        evaluations = open_rows(folder).aggregate(
            {"first": "min(iteration)"}, _GROUP_COLUMNS, "phase <> 'train'"
        )
        begins = evaluations["first"].to_dict()
    return find_samples(folder, rows, begins)


def _check_rank(folder: RunFolder, rank: int) -> None:
    ranks = max((attempt.world_size for attempt in folder.read_attempts()), default=0)
    if rank >= ranks:
        noun = "rank" if ranks == 1 else "ranks"
        raise UsageError(f"{folder} has no rank {rank}; it had {ranks} {noun}, counted from 0")


def find_samples(folder: RunFolder, rows: pd.DataFrame, begins: Mapping[Any, int]) -> pd.DataFrame:
    """Return a row for each sample in the batches of `rows`, with its `index`, or its `position` in
    an iterable dataset.

    `begins` has each evaluation's first iteration by attempt, rank, phase and epoch. Leaves the
    caller's random state alone. Raises UsageError if the task or its data has changed.
    """
    attempts = {attempt.number: attempt for attempt in folder.read_attempts()}
    missing = sorted({*rows["attempt"]} - attempts.keys())
    if missing:
        raise make_lost_attempt_error(folder.storage, missing[0])

    rows = rows.astype({"phase": "str"})
    orders: dict[str, _DataOrder] = {}
    tables = []
    random_state_before = random_state()
    try:
        for named, group in rows.groupby(_GROUP_COLUMNS):
            attempt = attempts[cast(tuple[int, ...], named)[0]]
            key = json.dumps(attempt.order and attempt.order.values)
            if key not in orders:
                orders[key] = _DataOrder(folder, attempt)
            tables.append(_locate_samples(orders[key], attempt, named, group, begins))
    finally:
        restore_random_state(random_state_before)

    table = pd.concat(tables).sort_index(kind="stable") if tables else rows[:0]
    kinds = {"index": "Int64"}
    if "position" in table:
        kinds["position"] = "Int64"
    columns = [*ROW_KEY, *kinds]
    if "loss" in table:
        columns.append("loss")
    return table.reindex(columns=columns).astype(kinds).reset_index(drop=True)


def _locate_samples(
    order: "_DataOrder",
    attempt: Attempt,
    named: Any,
    group: pd.DataFrame,
    begins: Mapping[Any, int],
) -> pd.DataFrame:
    """Return a row for each sample of consecutive batches of one rank."""
    _, rank, phase, epoch = named
    column = "position"
    locations: list[Any]
    if not order.is_iterable(phase):
        column = "index"
        start = None if phase == "train" else begins[named]
        iterations = group["iteration"]
        locations = order.find_indices(attempt, int(rank), phase, int(epoch), iterations, start)
    elif phase == "train":
        ends = zip(group["samples"], group["batch_size"], strict=True)
        locations = [[*range(read - size, read)] for read, size in ends]
    else:  # unknown
        locations = [[None]] * len(group)
    series = pd.Series(locations, group.index, dtype=object)
    return group.assign(**{column: series}).explode(column)


def resolve_attempt(folder: RunFolder, attempt: Attempt) -> ResolvedExperiment:
    """Return a run's experiment with the data order of an attempt; raises UsageError if it cannot
    be built here."""
    source = folder.read_source()
    extend_import_path([*source.import_paths, Path.cwd()])
    try:
        return resolve(source.with_values(attempt.order.values) if attempt.order else source)
    except ConfigError as error:
        raise UsageError(
            f"{folder} cannot be repeated, since its task or a hook cannot be built: {error}"
        ) from None


class _DataOrder:
    """Data order of attempts that share it."""

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

    def find_indices(
        self,
        attempt: Attempt,
        rank: int,
        phase: str,
        epoch: int,
        iterations: pd.Series,
        start: int | None,
    ) -> list[list[int]]:
        """Return the samples of each iteration. `start` is the first iteration of an evaluation."""
        world = _ReplayedRank(rank, attempt.world_size)
        data = self._make_data(attempt, phase, world)
        if start is None:
            first, offset = self._find_start(attempt, epoch, data, world)
            data.sampler.begin(epoch, offset)
            data.sampler.set_epoch(epoch if self._sets_sampler_epoch else 0)
        batches = list(data.loader.batch_sampler)
        # An evaluation may iterate over its data several times.
        positions = iterations - first - 1 if start is None else (iterations - start) % len(batches)
        return [batches[position] for position in positions]

    def _make_data(self, attempt: Attempt, phase: str, world: World) -> MapStyleData:
        restore_random_state(self._initial_random_state)
        # The task's samplers draw random numbers in order when they are made.
        for name in self._list_indexed_phases():
            context = PhaseContext(self._task, name, self._experiment, world)
            data = MapStyleData(context, self._datasets[name])
            if name == phase:
                break
        batches = getattr(data.loader, "batch_sampler", None)
        has_own_batches = type(batches) in (BatchSampler, SeededBatches)
        if not has_own_batches or getattr(batches, "sampler", None) is not data.sampler:
            raise UsageError(
                f"loader() of {type(self._task).__name__} makes the batches of {phase}; their samples are unknown"
            )
        self._check_size(attempt, phase, data)
        return data

    def _list_indexed_phases(self) -> list[str]:
        names = chain.from_iterable(list_phases(kind, self._datasets) for kind in PHASES)
        return [name for name in names if not self.is_iterable(name)]

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

    def _find_start(
        self, attempt: Attempt, epoch: int, data: MapStyleData, world: World
    ) -> tuple[int, int]:
        """Return the iterations, and the consumed samples of all ranks, before an attempt's part of
        an epoch."""
        state = LoopState()
        position = attempt.position
        progress = EpochProgress(state, data.length, self._experiment.batch_size * world.world_size)
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
