"""The best of a run: what it reached, the checkpoint that holds it, and what to type to use it. Needs no torch."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from hooks.metrics.direction import find_best_metric
from orchestrator.checkpoint.index import read_index
from orchestrator.checkpoint.manifest import position_in, read_manifest
from orchestrator.errors import CheckpointError, DamagedFile, HookyardError
from orchestrator.records.reports import counted_reports
from orchestrator.records.run_folder import RunFolder, tell_lost_index, tell_lost_manifest
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.aggregate.best_report import Divergence, best_report, divergence
from orchestrator.storage import Storage

_LENGTHS = ("T_max", "total_iters", "total_steps")
"""How schedulers call their length; where that is the run's, it grows with it."""

_log = logging.getLogger("hookyard")


@dataclass(frozen=True)
class Best:
    """The best report of a run by the metric that it is judged by first, and the checkpoint called `best`."""

    metric: str
    mode: str
    value: float
    epoch: int
    step: int
    checkpoint: str | None = None
    """None where none is stored."""
    checkpoint_value: float | None = None
    """What the checkpoint reached: not the best where none was made of that step."""
    diverged: str = ""
    """How the run's training diverged; empty where it did not."""

    def __str__(self) -> str:
        place = f"epoch {self.epoch}, step {self.step}{f'; diverged: {self.diverged}' if self.diverged else ''}"
        reached = f"{self.metric} {quantities.text(self.metric, self.value)} ({place})"
        if self.checkpoint is None:
            return f"{reached}, of which no checkpoint is kept"
        if self.checkpoint_value == self.value:
            return f"{reached}, in the checkpoint {self.checkpoint}"
        kept = quantities.text(self.metric, self.checkpoint_value) or "unknown"
        return f"{reached}, of which no checkpoint was made; {self.checkpoint} is the best that is kept, with {kept}"


def best_of(folder: RunFolder) -> Best | None:
    """The best of a run, under way or over; None of an evaluation, and where it is known of no reported metric which
    way is better."""
    return best_and_divergence(folder)[0]


def best_and_divergence(folder: RunFolder) -> tuple[Best | None, Divergence | None]:
    """Return what `best_of` does, and how training diverged, also where no value is left to be the best."""
    metadata = folder.metadata()
    if metadata.evaluates:
        return None, None
    config = folder.experiment()
    if metadata.modes:  # a trial is judged as its sweep says
        config["sweep"] = {"metric": [*metadata.modes], "mode": [*metadata.modes.values()]}
    reports = [one for one in counted_reports(folder.reports(), folder.attempts()) if {"epoch", "step"} <= one.keys()]
    storage = folder.kept_checkpoints()
    index = read_index(storage)
    reported = dict.fromkeys(name for report in reports for name in report)
    told = find_best_metric(reported, config, index.get("metrics", {}).get("best", ""))
    diverged = divergence(reports, told[0] if told else None)
    report = best_report(reports, *told) if told else None
    if told is None or report is None:
        return None, diverged
    metric, mode = told
    best = Best(metric, mode, report[metric], report["epoch"], report["step"], diverged=str(diverged or ""))
    return _with_checkpoint(best, storage, index.get("labels", {}).get("best"), reports), diverged


def _with_checkpoint(best: Best, storage: Storage, name: str | None, reports: Sequence[Mapping[str, Any]]) -> Best:
    """Return the best with the checkpoint that is called so, and what that reached."""
    if name is None:
        tell_lost_index(storage)
        return best
    try:
        step = position_in(read_manifest(storage, name)).step
    except FileNotFoundError:
        tell_lost_manifest(storage, name)
        return best
    except (DamagedFile, CheckpointError) as error:
        _log.warning("%s", error)
        return best
    value = next((one[best.metric] for one in reports if one["step"] == step and best.metric in one), None)
    return replace(best, checkpoint=name, checkpoint_value=value)


@contextmanager
def recording_best(folder: RunFolder) -> Iterator[None]:
    """At its end what the run reached is written down for `ls`, which reads no more than `run.json`; also after a
    failure. Driver."""
    try:
        yield
    except BaseException:
        with suppress(HookyardError):  # what failed before is the failure that is told
            _record(folder)
        raise
    _record(folder)


def _record(folder: RunFolder) -> None:
    best, diverged = best_and_divergence(folder)
    folder.update(best=asdict(best) if best else None, diverged=str(diverged or ""))


@dataclass(frozen=True)
class Use:
    """What to type to use a run, or a sweep's best trial, from one of its checkpoints."""

    python: str
    command: str

    @classmethod
    def of(cls, folder: RunFolder, label: str, trial: RunFolder | None = None) -> Self:
        """Return what gives the model in Python, and as many epochs or steps again on the command line.

        `trial` is a sweep's best. Of a task that trains by itself, which has no order of data, it is the checkpoint.
        """
        config, attempts = folder.experiment(), (trial or folder).attempts()
        has_model = not attempts or attempts[-1].order is not None
        what = f"model = {{}}.load({json.dumps(label)})"
        if not has_model:
            what = f"path = {{}}{'.best' if trial else ''}.checkpoint({json.dumps(label)})"
        opened = "open_sweep" if folder.metadata().sweep else "open_run"
        unit = "epochs" if config.get("epochs") else "steps"
        length, scheduler = config.get(unit) or 0, config.get("scheduler")
        fitted = (
            [key for key, value in scheduler.items() if key in _LENGTHS and value == length]
            if isinstance(scheduler, dict)
            else []
        )
        longer = " ".join(f"{key}={2 * length}" for key in (unit, *(f"scheduler.{key}" for key in fitted)))
        return cls(
            f"from orchestrator import {opened}; {what.format(f'{opened}({json.dumps(str(folder))})')}",
            f"hookyard run {shlex.quote(f'{folder}@{label}')} {longer}",
        )
