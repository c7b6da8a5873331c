"""The evaluations of a run, each of which is itself a run folder inside the run's."""

from orchestrator.disk.run_folder import RunFolder

EVALUATIONS = "evaluations"
"""Folder of a run with its evaluations."""
PREDICTIONS = "predictions"
"""Folder with the predictions that such an evaluation has written."""


def get_evaluated_run(evaluation: RunFolder) -> RunFolder:
    """Return the run that an evaluation or a prediction is of."""
    return RunFolder(evaluation.storage.parent.parent)
