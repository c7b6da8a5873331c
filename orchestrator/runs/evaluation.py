"""Evaluations of stored checkpoints, measured as during training, in a folder of the run. Used in
the driver."""

from collections.abc import Sequence

from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines.assignment import EvaluationTarget
from orchestrator.errors import UsageError
from orchestrator.runs.evaluated_checkpoint import find_subject
from orchestrator.runs.evaluation_overrides import changes_task, check_rank_count
from orchestrator.runs.inference_experiment import make_inference_experiment
from orchestrator.runs.inference_job import InferenceJob


def prepare_evaluation(
    run: RunFolder,
    label: str,
    phase: str,
    overrides: Sequence[str] = (),
    workers: int | None = None,
) -> InferenceJob:
    """Prepare what `Run.evaluate` runs; raises its errors."""
    has_rank_override = check_rank_count(overrides, workers)
    if phase not in ("val", "test"):
        raise UsageError(f"phase must be val or test, got {phase!r}")
    subject = find_subject(run, label, phase, checks_data=not changes_task(overrides))
    inference = make_inference_experiment(
        run, subject, overrides, workers, runs_hook=lambda hook: hook.evaluates
    )
    return InferenceJob(
        run=run,
        subject=subject,
        experiment=inference.experiment,
        name=f"{subject.checkpoint}-{phase}",
        target=EvaluationTarget(subject.checkpoint, phase, rewinds=inference.has_seed_of_run),
        has_rank_override=has_rank_override,
    )
