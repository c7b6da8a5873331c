"""Summary of a sweep's trials: their order, the best one, and when the sweep will end."""

import math
from collections import Counter
from collections.abc import Sequence

from orchestrator.disk.metadata import RunMetadata, SweepMetadata
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import FAILED
from orchestrator.disk.timestamps import seconds_at
from orchestrator.tables.configurations import RankedTrial
from orchestrator.tables.trial_ranking import rank_trials
from orchestrator.terminal.sweep_view import SweepView, TrialView


def summarize_sweep(
    folder: RunFolder,
    metadata: RunMetadata,
    sweep: SweepMetadata,
    status: str,
    trials: Sequence[TrialView],
) -> SweepView:
    """Return the state of a sweep with these trials, without an ETA. Reads no file."""
    metric, mode = sweep.objectives[0]
    ordered = sorted(trials, key=lambda trial: _make_sort_key(trial, mode))
    ranking = rank_trials(map(_make_ranked_trial, ordered), mode, sweep.aggregate)
    total = max(sweep.trials, len(ordered))
    return SweepView(
        name=folder.name,
        path=str(folder),
        status=status,
        error=metadata.error,
        metric=metric,
        mode=mode,
        total=total,
        counts=dict(Counter(trial.status for trial in ordered)),
        best=next(iter(ranking.trials), None),
        share=sum(trial.share for trial in ordered) / total,
        eta_s=None,
        trials=tuple(ordered),
        configuration=next(iter(ranking.configurations), None) if ranking.trials else None,
        notice=_describe_lost_driver(metadata) if status == "lost" else None,
    )


def estimate_eta_s(view: SweepView, start: str, now: float) -> float | None:
    """Estimate the seconds to the end of a sweep from its speed; None if nothing is done yet.

    Args:
        view: State of the sweep.
        start: Time at which the sweep began or was last resumed.
        now: Unix time.
    """
    done = sum(trial.compute_share_since(start) for trial in view.trials)
    if done <= 0:
        return None

    remaining = view.total - sum(trial.share for trial in view.trials)
    elapsed_s = max(0.0, now - seconds_at(start))
    return elapsed_s * remaining / done


def _describe_lost_driver(metadata: RunMetadata) -> str:
    driver = f"its driver ({metadata.driver})"
    return f"the sweep is dead: {driver} is gone"


def _make_sort_key(trial: TrialView, mode: str) -> tuple[int, float, str]:
    """Return a key that puts running trials first, then ended ones from the best, then failed ones.

    A running trial keeps its place while its best value changes.
    """
    group = {"running": 0, **dict.fromkeys(FAILED, 2)}.get(trial.status, 1)
    if group == 0:
        return group, 0.0, trial.name
    if trial.best is None:
        return group, math.inf, trial.name
    return group, -trial.best if mode == "max" else trial.best, trial.name


def _make_ranked_trial(trial: TrialView) -> RankedTrial:
    return RankedTrial(trial.configuration, trial.name, trial.status, trial.best, trial.infeasible)
