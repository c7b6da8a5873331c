"""Summary of a sweep's trials: their order, the best one, and when the sweep will end."""

import math
from collections import Counter
from collections.abc import Sequence

from orchestrator.disk.metadata import RunMetadata, SweepMetadata, seconds_at
from orchestrator.disk.run_folder import RunFolder
from orchestrator.tables.configurations import Configuration, Repeat, rank_configurations
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
    leader = _find_leader(ordered, mode, sweep.aggregate)
    best = _find_best(ordered, leader, mode)
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
        best=best.name if best else None,
        share=sum(trial.share for trial in ordered) / total,
        eta_s=None,
        trials=tuple(ordered),
        configuration=leader if best else None,
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
    driver = f"its driver (process {metadata.pid} on {metadata.host})"
    return f"the sweep is dead: {driver} is gone"


def _make_sort_key(trial: TrialView, mode: str) -> tuple[int, float, str]:
    """Return a key that puts running trials first, then ended ones from the best, then failed ones.

    A running trial keeps its place while its best value changes.
    """
    group = {"running": 0, "failed": 2, "lost": 2}.get(trial.status, 1)
    cost = 0.0 if trial.status == "running" else _compute_cost(trial, mode)
    return group, cost, trial.name


def _find_leader(trials: Sequence[TrialView], mode: str, aggregate: str) -> Configuration | None:
    """Return the best configuration of a sweep with repeats, all of which keep the constraints."""
    infeasible = {trial.configuration for trial in trials if trial.infeasible}
    repeats = []
    for trial in trials:
        if trial.configuration is not None:
            value = None if trial.configuration in infeasible else trial.best
            repeats.append(Repeat(trial.configuration, trial.name, trial.status, value))
    ranking = rank_configurations(repeats, mode, aggregate)
    return ranking[0] if ranking else None


def _find_best(
    trials: Sequence[TrialView], leader: Configuration | None, mode: str
) -> TrialView | None:
    """Return the best trial, with repeats that of the best configuration."""
    candidates = [
        trial
        for trial in trials
        if trial.best is not None and trial.status != "failed" and not trial.infeasible
    ]
    if leader is not None:
        candidates = [trial for trial in candidates if trial.name in leader.trials[:1]]
    return min(candidates, key=lambda trial: (_compute_cost(trial, mode), trial.name), default=None)


def _compute_cost(trial: TrialView, mode: str) -> float:
    """Return a cost to sort by: lower is better; infinity if there is no value."""
    if trial.best is None:
        return math.inf
    return -trial.best if mode == "max" else trial.best
