"""The best report of a run, its checkpoint, and commands to use it. Does not need torch."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from hooks.metrics.direction import find_modes_by_meter
from hooks.metrics.monitored import find_declared_modes
from orchestrator import units
from orchestrator.disk.attempts import get_meter_modes
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import read_index, warn_lost_index
from orchestrator.disk.checkpoints.listing import read_position
from orchestrator.disk.reports import list_reported_names
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import HookyardError
from orchestrator.storage import Storage
from orchestrator.tables.best_report import (
    Divergence,
    find_best_report,
    find_divergence,
    find_main_metric,
)

RESUMABLE = ("interrupted", "failed", "lost")
"""Statuses of runs and sweeps that can be resumed."""
_LENGTH_ARGUMENTS = ("T_max", "total_iters", "total_steps")
"""Scheduler arguments that hold a length. If it equals the run's length, it changes along with
it."""
_COUNTERS = ("epoch", "step", "iteration")
"""Counters of each report."""


@dataclass(frozen=True)
class Best:
    """The best report of a run by its main metric, and the checkpoint labeled `best`."""

    metric: str
    mode: str
    value: float
    epoch: int
    """Epoch of the report, from 0."""
    step: int
    iteration: int
    checkpoint: str | None = None
    """Name of the checkpoint; None if none is stored."""
    checkpoint_value: float | None = None
    """Value of the metric at the checkpoint, which may have been saved at another position."""
    diverged: str = ""
    """Description of a divergence; empty if there was none."""

    def __str__(self) -> str:
        place = f"epoch {units.number_epoch(self.epoch)}, step {self.step}"
        if self.diverged:
            place += f"; diverged: {self.diverged}"
        reached = f"{self.metric} {units.format_value(self.metric, self.value)} ({place})"
        if self.checkpoint is None:
            return f"{reached}, without a stored checkpoint"
        if self.checkpoint_value == self.value:
            return f"{reached}, in the checkpoint {self.checkpoint}"
        stored = units.format_value(self.metric, self.checkpoint_value) or "unknown"
        return f"{reached}, without a checkpoint; the best stored one is {self.checkpoint}, with {stored}"


def find_modes(folder: RunFolder, best: Best | None) -> dict[str, str]:
    """Return the direction (`max` or `min`) of each metric of a run whose direction is known."""
    best_mode = {best.metric: best.mode} if best else {}
    meters = get_meter_modes(folder.read_attempts())
    return {
        **find_modes_by_meter(list_reported_names(folder.read_current_reports()), meters),
        **find_declared_modes(folder.read_experiment()),
        **folder.read_metadata().modes,
        **best_mode,
    }


def find_best_and_divergence(folder: RunFolder) -> tuple[Best | None, Divergence | None]:
    """Return the best report of a run, and its divergence if it diverged; (None, None) for an
    evaluation.

    The best is None if no metric's direction is known.
    """
    metadata = folder.read_metadata()
    if metadata.evaluates:
        return None, None
    config = folder.read_experiment()
    lines = folder.read_current_reports()
    reports = [line for line in lines if {*_COUNTERS} <= line.keys()]
    storage = find_checkpoint_folder(folder)
    index = read_index(storage)
    kept_by = index.get("metrics", {}).get("best", "")
    main = find_main_metric(metadata, config, folder.read_attempts(), reports, kept_by)
    diverged = find_divergence(reports, main[0] if main else None)
    compared = [line for line in reports if metadata.modes.keys() <= line.keys()]
    report = find_best_report(compared, *main) if main else None
    if main is None or report is None:
        return None, diverged
    metric, mode = main
    counters = {name: report[name] for name in _COUNTERS}
    best = Best(metric, mode, report[metric], **counters, diverged=str(diverged or ""))
    return _with_checkpoint(best, storage, index.get("labels", {}).get("best"), reports), diverged


def _with_checkpoint(
    best: Best, storage: Storage, name: str | None, reports: Sequence[Mapping[str, Any]]
) -> Best:
    if name is None:
        warn_lost_index(storage)
        return best
    position = read_position(storage, name)
    if position is None:
        return best
    values = (
        line[best.metric]
        for line in reports
        if line["iteration"] == position.iteration and best.metric in line
    )
    return replace(best, checkpoint=name, checkpoint_value=next(values, None))


@contextmanager
def recording_best(folder: RunFolder) -> Iterator[None]:
    """Record the best report in `run.json` when the block ends, even after a failure. `ls` reads
    nothing else."""
    try:
        yield
    except BaseException:
        with suppress(HookyardError):  # keep the first failure
            _record(folder)
        raise
    _record(folder)


def _record(folder: RunFolder) -> None:
    best, diverged = find_best_and_divergence(folder)
    folder.update(best=asdict(best) if best else None, diverged=str(diverged or ""))


@dataclass(frozen=True)
class UsageHint:
    """Code and a command to use a checkpoint of a run, or of a sweep's best trial."""

    python: str
    command: str


def make_usage_hint(folder: RunFolder, label: str, trial: RunFolder | None = None) -> UsageHint:
    """Return code that loads the model, and a command that resumes the run or trains for as long
    again.

    `trial` is a sweep's best trial. A task with a custom loop has no model to load, only a
    checkpoint.
    """
    attempts = (trial or folder).read_attempts()
    has_model = not attempts or attempts[-1].order is not None
    opener = "open_sweep" if folder.read_metadata().sweep else "open_run"
    opened = f"{opener}({json.dumps(str(folder))})"
    code = f"model = {opened}.load({json.dumps(label)})"
    if not has_model:
        run = f"{opened}.best" if trial else opened
        code = f"path = {run}.checkpoint({json.dumps(label)})"
    return UsageHint(f"from orchestrator import {opener}; {code}", _make_command(folder, label))


def _make_command(folder: RunFolder, label: str) -> str:
    """Return the command that resumes a run, or trains for as long again from a checkpoint."""
    status = folder.find_status()
    if status in RESUMABLE:
        return f"hookyard resume {shlex.quote(str(folder))}"

    config = folder.read_experiment()
    unit = "epochs" if config.get("epochs") else "steps"
    length = config.get(unit) or 0
    keys = [unit]
    scheduler = config.get("scheduler")
    if isinstance(scheduler, dict):
        keys += [f"scheduler.{key}" for key in _LENGTH_ARGUMENTS if scheduler.get(key) == length]
    trained = {"epochs": 0, "steps": 0}
    for report in folder.read_current_reports()[-1:]:
        trained = {"epochs": report.get("epoch", -1) + 1, "steps": report.get("step", 0)}
    # A finished run that trained for less than its length has an edited experiment.yaml.
    is_edited = status == "finished" and 0 < trained[unit] < length
    target = length if is_edited else 2 * length
    longer = [f"{key}={target}" for key in keys]
    # Several workers would train with larger batches in total.
    flags = ["--local"] if folder.read_metadata().local else []
    return " ".join(["hookyard run", shlex.quote(f"{folder}@{label}"), *longer, *flags])
