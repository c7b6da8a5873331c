"""The record of a run in the table of all runs of a storage, made from the files of the run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from hooks.metrics.names import REPORT_ENTRIES
from orchestrator.column_names import CONFIG
from orchestrator.disk.attempts import Attempt, find_leader
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import read_index
from orchestrator.disk.listing import read_metadata_or_damage
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import drop_superseded, read_reports
from orchestrator.disk.rows.usage import load_usage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import get_sweep
from orchestrator.errors import DamagedFile
from orchestrator.storage import Storage
from orchestrator.tables.best_report import find_main_metric, summarize_reports
from orchestrator.tables.config_differences import flatten
from orchestrator.tables.gpu_count import count_gpus

_LEFT_OUT = ("name", "tags", "notes", "sweep")
"""Keys of an experiment that have a column of their own, or describe a sweep's trials."""

Report = Mapping[str, Any]


def read_run_record(storage: Storage, path: str) -> dict[str, Any] | None:
    """Return the record of the run at a path in the storage; None if there is no run.

    Reads each of its files once. A damaged run has only a status and an error.
    """
    folder = RunFolder(storage, path)
    sweep, mark, _ = path.rpartition("/trials/")
    is_trial = bool(mark) and path.count("/") == 2
    record = {"path": path, "name": folder.name, "sweep": sweep if is_trial else None}
    metadata = read_metadata_or_damage(folder)
    if metadata is None:
        return None
    if isinstance(metadata, DamagedFile):
        return {**record, **_describe_damage(metadata)}

    record |= _describe_metadata(metadata)
    try:
        return {**record, **_describe_files(folder, metadata)}
    except DamagedFile as error:
        return {**record, **_describe_damage(error)}


def _describe_damage(damage: DamagedFile) -> dict[str, Any]:
    return {"status": damage.status, "error": str(damage)}


def _describe_metadata(metadata: RunMetadata) -> dict[str, Any]:
    git = metadata.provenance.git or {}
    driver = None
    if metadata.status == "running" and metadata.driver:
        driver = json.dumps(asdict(metadata.driver))
    return {
        "kind": "trial" if metadata.trial else metadata.kind,
        "status": metadata.status,
        "driver": driver,
        "evaluates": str(metadata.evaluates) if metadata.evaluates else None,
        "tags": [*metadata.tags],
        "notes": metadata.notes or None,
        "started": datetime.fromisoformat(metadata.started),
        "ended": metadata.ended and datetime.fromisoformat(metadata.ended),
        "total_s": metadata.wall_s,
        "stopped": "; ".join(metadata.stopped) or None,
        "error": metadata.error,
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
    }


def _describe_files(folder: RunFolder, metadata: RunMetadata) -> dict[str, Any]:
    """Return what the experiment, the attempts, the reports and the rows of a run say."""
    config = folder.read_experiment()
    record: dict[str, Any] = dict(_make_config_cells(config, metadata.trial_settings.values))
    if metadata.sweep:
        constraints = metadata.sweep.constraints
        record["constraints"] = json.dumps(constraints) if constraints else None
        record |= _describe_recorded_best(metadata)
        return record

    attempts = folder.read_attempts()
    written = read_reports(folder.storage, metadata)
    reports = drop_superseded(written, attempts)
    record |= _describe_reports(folder, metadata, config, attempts, reports)
    record["attempts"] = len(attempts)
    leader = find_leader(attempts)
    if leader:
        record["leader"] = f"{get_sweep(folder).name}/trials/{leader}"
    if metadata.status != "running":
        record |= load_usage(folder.storage, attempts)
    total_s = metadata.measure_seconds(reports)
    if total_s is not None:
        record["total_s"] = total_s
        gpus = count_gpus(attempts, config, metadata, written)
        record["gpu_hours"] = gpus * total_s / 3600
    return record


def _make_config_cells(
    config: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield a cell for each value of an experiment, and for those of a trial; lists and empty
    mappings are JSON."""
    plain = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    for path, value in {**dict(flatten(plain)), **values}.items():
        is_plain = not isinstance(value, list | dict)
        yield f"{CONFIG}{path}", value if is_plain else json.dumps(value)


def _describe_recorded_best(metadata: RunMetadata) -> dict[str, Any]:
    """Return the best report that `run.json` has; of a sweep with repeats, with the mean of its best
    configuration."""
    best = metadata.best
    if best is None:
        return {"diverged": metadata.diverged or None}
    return {
        "best": best.score,
        "metric": best.metric,
        "mode": best.mode,
        "epoch": best.epoch,
        "checkpoint": best.place or None,
        "diverged": metadata.diverged or best.diverged or None,
    }


def _describe_reports(
    folder: RunFolder,
    metadata: RunMetadata,
    config: Mapping[str, Any],
    attempts: Sequence[Attempt],
    reports: Sequence[Report],
) -> dict[str, Any]:
    """Return the metrics at the best report, and the last value of each."""
    last: dict[str, Any] = {}
    for report in reports:
        last |= _select_metrics(report)
    record: dict[str, Any] = {f"last/{name}": value for name, value in last.items()}
    record["reports"] = len(reports)
    if metadata.evaluates:
        return {**record, **_select_metrics_of_phases(last)}

    checkpoint_metric = _find_checkpoint_metric(folder, metadata, config)
    main = find_main_metric(metadata, config, attempts, reports, checkpoint_metric)
    best, divergence = summarize_reports(reports, main, metadata.trial_settings.modes)
    record["diverged"] = str(divergence) if divergence else None
    if main is None or best is None:
        return record
    metric, mode = main
    return {
        **record,
        **_select_metrics_of_phases(best),
        "best": best[metric],
        "metric": metric,
        "mode": mode,
        "epoch": best.get("epoch"),
        "checkpoint": metadata.best and metadata.best.checkpoint,
    }


def _find_checkpoint_metric(
    folder: RunFolder, metadata: RunMetadata, config: Mapping[str, Any]
) -> str:
    """Return the metric of the run's best checkpoint; empty if there is none."""
    metric: str
    if metadata.best:
        metric = metadata.best.metric
    else:
        index = read_index(find_checkpoint_folder(folder, config))
        metric = index.get("metrics", {}).get("best", "")
    return metric


def _select_metrics(report: Report) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in REPORT_ENTRIES}


def _select_metrics_of_phases(report: Report) -> dict[str, Any]:
    """Return the metrics whose names cannot be those of other columns."""
    return {name: value for name, value in report.items() if "/" in name}
