"""The checkpoints of a run, which say why one of them is missing. Used in the driver."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from hooks.metrics.main_metric import find_best_metric, list_val_metrics
from hooks.metrics.monitored import AUTO
from hooks.metrics.names import REPORT_ENTRIES, list_known
from orchestrator.disk.attempts import get_meter_modes
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.disk.reports import list_reported_names
from orchestrator.disk.run_folder import RunFolder


def open_checkpoints(folder: RunFolder, *, is_master: bool = True) -> CheckpointStore:
    """Return a run's checkpoints, which say why `best` or `last` is missing."""
    explain = partial(_explain_missing_checkpoint, folder)
    return CheckpointStore(find_checkpoint_folder(folder), folder.name, is_master, explain)


def _explain_missing_checkpoint(folder: RunFolder, label: str) -> str:
    """Return why a run has no checkpoint `best` or `last`, to end a message."""
    config = folder.read_experiment()
    hook = (config.get("hooks") or {}).get("checkpoint")
    if not isinstance(hook, dict):
        return ": hooks.checkpoint was off"
    if label != "best":
        return ": none was saved, or all were removed"
    return _explain_missing_best(folder, config, _get_best_metric(hook))


def _get_best_metric(hook: Mapping[str, Any]) -> str:
    """Return the first metric of `hooks.checkpoint.best`."""
    best = hook.get("best") or AUTO
    metric: str = best if isinstance(best, str) else best[0]
    return metric


def _explain_missing_best(folder: RunFolder, config: Mapping[str, Any], metric: str) -> str:
    reported = [
        name for name in list_reported_names(folder.read_reports()) if name not in REPORT_ENTRIES
    ]
    if metric != AUTO and metric not in reported:
        hint = f" ({list_known(reported, metric)})" if reported else ""
        return f": no report has the metric of hooks.checkpoint.best, '{metric}'{hint}"
    if not list_val_metrics(reported):
        return ": the run did not validate"

    meters = get_meter_modes(folder.read_attempts())
    if metric != AUTO or find_best_metric(reported, config, meters=meters):
        return ": no checkpoint was saved at a report with a finite value of its metric"
    return ": no validation metric has a known direction. Set hooks.checkpoint: {best: METRIC, mode: max}, or mode: min"
