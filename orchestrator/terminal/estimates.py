"""Estimates of the length, share, remaining time and speed of a run, from its files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hooks.interval import count_iterations
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.timestamps import seconds_at
from orchestrator.terminal.run_view import RunProgress, Speed

SPEED_ITERATIONS = 50
"""Number of last iterations from which loss and speed are computed."""


def estimate_progress(
    experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress, now: float
) -> RunProgress:
    """Add length, share and ETA to a run's progress, from the mean speed of the current attempt.

    The speed includes validation and saving. `now` is Unix time.
    """
    remaining = _count_remaining_iterations(experiment, attempt, reached)
    total = None if remaining is None else reached.iteration + remaining
    share = reached.iteration / total if total else None
    done = reached.iteration - attempt.position.iteration if attempt else 0
    eta_s = None
    if remaining is not None and attempt and attempt.started and done > 0:
        # The clock may have been set back.
        eta_s = remaining * max(0.0, now - seconds_at(attempt.started)) / done
    return replace(
        reached,
        epochs=experiment.get("epochs"),
        steps=experiment.get("steps"),
        share=share,
        attempt_share=done / total if total else None,
        eta_s=eta_s,
    )


def _count_remaining_iterations(
    experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress
) -> int | None:
    length = attempt.epoch_iterations or 0 if attempt else 0
    completed = _count_completed_iterations(experiment, attempt, reached, length)

    steps = experiment.get("steps")
    if steps is not None:
        written = experiment.get("accumulate")
        accumulate = written if isinstance(written, int) else 1
        return count_iterations(max(0, steps - reached.step), accumulate, length, completed)

    epochs = experiment.get("epochs")
    if not epochs or not length:
        return None
    return max(0, int(epochs * length - completed))


def _count_completed_iterations(
    experiment: Mapping[str, Any], attempt: Attempt | None, reached: RunProgress, length: int
) -> int:
    """Convert the completed part of the training to iterations of this attempt's ranks."""
    batch_size = experiment.get("batch_size")
    if attempt is None or not batch_size:
        return reached.iteration

    # The epoch may have started with a different number of ranks, so its completed part is
    # counted in samples.
    start = attempt.position
    in_epoch = start.phase_iteration
    if start.offset:
        in_epoch = start.offset // (batch_size * attempt.world_size)
    return start.epoch * length + in_epoch + reached.iteration - start.iteration


@np.errstate(invalid="ignore", divide="ignore")
def compute_speed(rows: pd.DataFrame) -> Speed:
    """Return the current speed from training rows, any number for each rank."""
    if not len(rows):
        return Speed()

    newest = rows.groupby("rank").tail(SPEED_ITERATIONS)
    values: dict[str, float] = {}
    if "loss" in newest:
        values["loss"] = newest["loss"].mean()
    if "step_s" in newest:
        values["step_s"] = newest["step_s"].median()
    if "step_s" in newest and "batch_size" in newest:
        # Means, because ranks write their rows at different times.
        means = newest.groupby("rank")[["batch_size", "step_s"]].mean()
        values["samples_per_s"] = means["batch_size"].sum() / means["step_s"].max()
    return Speed(**{name: float(value) for name, value in values.items() if np.isfinite(value)})
