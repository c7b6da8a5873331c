"""Predictions of stored checkpoints, in a folder of the run. Used in the driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hooks.errors import add_article
from hooks.hook import Hook
from hooks.metrics.names import get_kind
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import PredictionTarget
from orchestrator.errors import UsageError
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.evaluated_checkpoint import find_subject
from orchestrator.runs.evaluation_overrides import changes_task, check_rank_count
from orchestrator.runs.inference_experiment import make_inference_experiment
from orchestrator.runs.inference_job import InferenceJob
from orchestrator.user_code.named_classes import find_function


def prepare_prediction(
    run: RunFolder,
    data: Any,
    label: str,
    phase: str,
    overrides: Sequence[str] = (),
    workers: int | None = None,
) -> InferenceJob:
    """Prepare what `Run.predict` runs; raises its errors."""
    has_rank_override = check_rank_count(overrides, workers)
    if get_kind(phase) not in ("val", "test"):
        raise UsageError(f"phase must be val, test or a set of these, got {phase!r}")
    uses_data_of_run = data is None and not changes_task(overrides)
    evaluated = find_subject(run, label, phase, checks_data=uses_data_of_run)
    subject = replace(evaluated, verb="predict")
    inference = make_inference_experiment(run, subject, overrides, workers, runs_hook=_runs_hook)
    # Only now, because the experiment has made the user's folders importable.
    subject = replace(subject, data=_describe_data(data))
    attempts = run.read_attempts()
    weights = open_checkpoints(run).find_evaluated_weights(subject.checkpoint, label)
    target = PredictionTarget(
        subject.checkpoint,
        phase,
        rewinds=inference.has_seed_of_run,
        provider=weights.rpartition("/")[0],
        data=data,
        epoch_iterations=attempts[-1].epoch_iterations if attempts else None,
    )
    place = re.sub(r"\W+", "-", subject.data or phase)
    return InferenceJob(
        run=run,
        subject=subject,
        experiment=inference.experiment,
        name=f"predict-{subject.checkpoint}-{place}",
        target=target,
        has_rank_override=has_rank_override,
    )


def _describe_data(data: Any) -> str:
    """Return what the metadata says of data in place of the phase's; raises ConfigError if it names
    no function."""
    if data is None:
        return ""
    if not isinstance(data, str):
        return add_article(type(data).__name__)
    find_function(data, "data")
    return data


def _runs_hook(hook: Hook) -> bool:
    # There is no loss, and the data may have no targets.
    return hook.evaluates and not hook.handles("on_loss")
