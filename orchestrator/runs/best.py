"""The best report of a run, and its checkpoint. Does not need torch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from hooks.metrics.direction import find_modes_by_meter
from hooks.metrics.monitored import find_declared_modes
from orchestrator.disk.attempts import get_meter_modes
from orchestrator.disk.best import Best
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import read_index, warn_lost_index
from orchestrator.disk.checkpoints.listing import read_position
from orchestrator.disk.reports import list_reported_names
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import HookyardError
from orchestrator.storage import Storage
from orchestrator.tables.best_report import (
    Divergence,
    find_main_metric,
    summarize_reports,
)

_COUNTERS = ("epoch", "step", "iteration")
"""Counters of each report."""


def find_modes(folder: RunFolder, best: Best | None) -> dict[str, str]:
    """Return the direction (`max` or `min`) of each metric of a run whose direction is known."""
    best_mode = {best.metric: best.mode} if best else {}
    meters = get_meter_modes(folder.read_attempts())
    return {
        **find_modes_by_meter(list_reported_names(folder.read_current_reports()), meters),
        **find_declared_modes(folder.read_experiment()),
        **folder.read_metadata().trial_settings.modes,
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
    lines = folder.read_current_reports()
    reports = [line for line in lines if {*_COUNTERS} <= line.keys()]
    config = folder.read_experiment()
    storage = find_checkpoint_folder(folder, config)
    index = read_index(storage)
    checkpoint_metric = index.get("metrics", {}).get("best", "")
    main = find_main_metric(metadata, config, folder.read_attempts(), reports, checkpoint_metric)
    report, diverged = summarize_reports(reports, main, metadata.trial_settings.modes)
    if main is None or report is None:
        return None, diverged

    metric, mode = main
    counters = {name: report[name] for name in _COUNTERS}
    best = Best(metric, mode, report[metric], **counters, diverged=str(diverged or ""))
    checkpoint = index.get("labels", {}).get("best")
    if checkpoint is None:
        warn_lost_index(storage)
        return best, diverged
    return _with_checkpoint(best, storage, checkpoint, reports), diverged


def _with_checkpoint(
    best: Best, storage: Storage, name: str, reports: Sequence[Mapping[str, Any]]
) -> Best:
    """Return the best report with the checkpoint of a name, if that is stored."""
    position = read_position(storage, name)
    if position is None:
        return best
    values = (
        line[best.metric]
        for line in reports
        if line["iteration"] == position.iteration and best.metric in line
    )
    return replace(
        best,
        checkpoint=name,
        checkpoint_value=next(values, None),
        checkpoint_iteration=position.iteration,
    )


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
    metadata = folder.read_metadata()
    folder.run_file.replace(replace(metadata, best=best, diverged=str(diverged or "")))
