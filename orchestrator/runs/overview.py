"""The overview of a run as plain data, from its small files alone. Does not need torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.disk.best import Best
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder, list_checkpoints
from orchestrator.disk.checkpoints.listing import read_position
from orchestrator.disk.evaluations import EVALUATIONS, PREDICTIONS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import find_status
from orchestrator.runs.best import find_best_and_divergence
from orchestrator.runs.usage_hint import UsageHint, make_usage_hint
from orchestrator.tables.best_report import Divergence
from orchestrator.units import number_epoch


def describe_run(folder: RunFolder) -> dict[str, Any]:
    """Return what `hookyard show --json` prints of a run."""
    run = folder.read_metadata()
    status = find_status(folder, run)
    reports = folder.read_current_reports()
    best, diverged = find_best_and_divergence(folder)
    checkpoints = list_checkpoints(folder)
    metrics, earlier = _merge_last(reports)
    return {
        "name": folder.name,
        "path": str(folder),
        "status": status,
        "driver": run.describe_driver(status),
        "started": run.started,
        "ended": run.ended,
        "attempts": len(folder.read_attempts()),
        "continued_from": run.continued_from,
        "init": run.init,
        "evaluates": run.evaluates,
        "evaluations": folder.storage.names(EVALUATIONS),
        "predictions": _find_predictions(folder),
        "stopped": list(run.stopped),
        "error": run.error,
        "diverged": str(diverged or ""),
        "reports": len(reports),
        "metrics": metrics,
        "earlier": earlier,
        "checkpoints": checkpoints,
        "best": best,
        "use": _find_usage_hint(folder, checkpoints, best, diverged),
    }


def _find_predictions(folder: RunFolder) -> str | None:
    predictions = folder.storage / PREDICTIONS
    return str(predictions) if predictions.names() else None


def _find_usage_hint(
    folder: RunFolder, checkpoints: Sequence[str], best: Best | None, diverged: Divergence | None
) -> UsageHint | None:
    """Return how to use the best checkpoint, or else the last one; None if the training has diverged
    before it."""
    if not checkpoints:
        return None
    label = "last"
    checkpoint = checkpoints[-1]
    if best and best.checkpoint:
        label = "best"
        checkpoint = best.checkpoint
    if diverged is not None:
        position = read_position(find_checkpoint_folder(folder), checkpoint)
        if position is None or position.iteration >= diverged.iteration:
            return None
    return make_usage_hint(folder, label)


def _merge_last(
    reports: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the last report with the last metrics of each phase that it lacks, and the position at
    which each of these was reported."""
    if not reports:
        return {}, {}
    *others, newest = reports
    last = dict(newest)
    earlier = {}
    for report in reversed(others):
        phases = {name.rpartition("/")[0] for name in last}
        for name, value in report.items():
            if name.rpartition("/")[0] not in phases:
                last[name] = value
                earlier[name] = _describe_position(report)
    return last, earlier


def _describe_position(report: Mapping[str, Any]) -> str:
    return f"epoch {number_epoch(report.get('epoch', 0))}, step {report.get('step', 0)}"
