"""The overview of a sweep as plain data: its trials in numbers, and the best of them."""

from typing import Any

import pandas as pd

from orchestrator.disk.best import Best
from orchestrator.runs.usage_hint import UsageHint, make_usage_hint
from orchestrator.sweeps.results.configurations_table import (
    aggregate_repeats,
    make_configurations_table,
)
from orchestrator.sweeps.results.importance import MIN_TRIALS, make_importance_table
from orchestrator.sweeps.results.pareto import find_pareto_front
from orchestrator.sweeps.results.ranking import select_candidates
from orchestrator.sweeps.results.result import Sweep


def describe_sweep(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    """Return what `hookyard show --json` prints of a sweep, except its trials, which come the best
    first."""
    metric, _ = sweep.objective
    status = sweep.status
    candidates: Any = ()
    if metric in trials:
        candidates = select_candidates(trials, metric)[metric]
    best = candidates.index[0] if len(candidates) else None
    reached = sweep.trial(best).best if best else None
    importance, std_error = _compute_importance(sweep, trials)
    return {
        "path": str(sweep.folder),
        "status": status,
        "driver": sweep.folder.read_metadata().describe_driver(status),
        "counts": trials["status"].value_counts().to_dict() if len(trials) else {},
        "shared_training": _summarize_shared_training(trials),
        "best": str(sweep.folder.storage / "trials" / best) if best else None,
        "value": candidates[best] if best else None,
        "configurations": _list_configurations(sweep, trials) if best else [],
        "reached": reached,
        "use": _make_usage_hint(sweep, best, reached),
        "importance": importance,
        "importance_std_error": std_error,
        "pareto": _find_pareto_front(sweep, trials),
    }


def _compute_importance(
    sweep: Sweep, trials: pd.DataFrame
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the importance of each parameter and its standard error; both empty for too few trials."""
    metric, mode = sweep.objective
    units = aggregate_repeats(trials, metric, mode, sweep.aggregate, sweep.repeated_path)
    if len(units) < MIN_TRIALS:
        return {}, {}
    table: Any = make_importance_table(units, metric)
    return table["importance"].to_dict(), table["std_error"].to_dict()


def _summarize_shared_training(trials: pd.DataFrame) -> dict[str, Any] | None:
    if "leader" not in trials:
        return None
    followers = trials[trials["leader"].notna() & (trials["leader"] != trials.index)]
    saved_s = _compute_saved_seconds(trials) if "train_s" in trials else 0.0
    return {"followers": len(followers), "trials": len(trials), "saved_s": saved_s}


def _compute_saved_seconds(trials: pd.DataFrame) -> float:
    """Return the training time that shared training saved.

    A report takes all trials of a group as long as the leader, and the group trains until its
    longest trial ends.
    """
    reports = trials.groupby("leader")["reports"]
    reported = trials["reports"].where(trials["reports"] > 0)
    return float(((reports.sum() - reports.max()) * trials["train_s"] / reported).sum())


def _list_configurations(sweep: Sweep, trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each configuration of a sweep that repeats them."""
    if sweep.repeats == 1:
        return []
    metric, mode = sweep.objective
    table: Any = make_configurations_table(
        trials, metric, mode, sweep.aggregate, sweep.repeated_path
    )
    rows: list[dict[str, Any]] = table.reset_index().to_dict("records")
    return rows


def _make_usage_hint(sweep: Sweep, best: str | None, reached: Best | None) -> UsageHint | None:
    if best is None or reached is None or reached.checkpoint is None:
        return None
    return make_usage_hint(sweep.folder, "best", sweep.trial(best).folder)


def _find_pareto_front(sweep: Sweep, trials: pd.DataFrame) -> list[str]:
    objectives = dict(sweep.objectives)
    if not len(trials) or len(objectives) == 1 or not objectives.keys() <= {*trials.columns}:
        return []
    return [*find_pareto_front(trials, objectives).index]
