"""Time to come: how much of training is done, and when the rest will be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.records.metadata import Attempt, seconds_at

_REPORTS, _APART_S = 10, 10.0
"""The time to come is reckoned from the last reports once they are so far apart: their times are whole seconds."""


@dataclass(frozen=True)
class RunProgress:
    """How far training has come on its way. What is not known is None."""

    phase: str | None = None
    epoch: int | None = None
    """The one under way, from 0."""
    step: int = 0
    iteration: int = 0
    """Training iterations completed."""
    epochs: int | None = None
    """Of the whole run, where its length is said in epochs."""
    steps: int | None = None
    """Of the whole run, where its length is said in steps."""
    share: float | None = None
    """How much is done, from 0 to 1."""
    eta_s: float | None = None
    """Seconds to the end of training at the present pace."""


def estimated_progress(
    experiment: Mapping[str, Any],
    attempt: Attempt | None,
    reached: RunProgress,
    reports: Sequence[Mapping[str, Any]],
    step_s: float | None,
) -> RunProgress:
    """How far a run is. `experiment` is its resolved experiment, `attempt` the present one (None where none has begun),
    `reports` those that count, `step_s` what an iteration takes."""
    to_come = _iterations_to_come(experiment, attempt, reached)
    total = None if to_come is None else reached.iteration + to_come
    share = reached.iteration / total if total else None
    pace = _seconds_per_iteration(
        [report for report in reports if attempt and report["attempt"] == attempt.number], step_s
    )
    eta_s = None if to_come is None or pace is None else to_come * pace
    return replace(reached, epochs=experiment.get("epochs"), steps=experiment.get("steps"), share=share, eta_s=eta_s)


def _iterations_to_come(experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress) -> int | None:
    epochs, steps, batch_size = (experiment.get(name) for name in ("epochs", "steps", "batch_size"))
    if steps is not None:
        batches = experiment.get("accumulate")
        return int(max(0, steps - reached.step) * (batches if isinstance(batches, int) else 1))
    if attempt is None or attempt.epoch_iterations is None or not epochs or not batch_size:
        return None
    length, start = attempt.epoch_iterations, attempt.position
    # Another number of ranks may have begun the epoch: what they consumed is counted in samples.
    of_epoch = start.offset // (batch_size * attempt.world_size) if start.offset else start.phase_iteration
    begun = start.epoch * length + of_epoch
    return max(0, int(epochs * length - begun - (reached.iteration - start.iteration)))


def _seconds_per_iteration(reports: Sequence[Mapping[str, Any]], step_s: float | None) -> float | None:
    """What an iteration takes with its part of validation and saving, as far as the reports of this attempt tell."""
    last = [report for report in reports if "time" in report][-_REPORTS:]
    if len(last) > 1:
        seconds = seconds_at(last[-1]["time"]) - seconds_at(last[0]["time"])
        iterations = last[-1]["iteration"] - last[0]["iteration"]
        if seconds >= _APART_S and iterations:
            return seconds / float(iterations)
    return step_s
