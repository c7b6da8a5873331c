"""What becomes of trials that share a training run when one of them fails."""

from collections.abc import Sequence
from enum import Enum

from orchestrator.engines.error_origin import is_gpu_failure
from orchestrator.engines.failure_record import is_user_error
from orchestrator.errors import MetricMissing
from orchestrator.sweeps.active_trial import ActiveTrial, list_training


class AfterFailure(Enum):
    """What becomes of the other trials of a training run after one has failed."""

    CONTINUE_WITHOUT = "continue without"
    """They train on in this process, without the failed trial."""
    END_ALL = "end all"
    """None of them can train on in this process."""


def decide_after_failure(
    error: Exception, others: Sequence[ActiveTrial], *, restarts: bool
) -> AfterFailure:
    """Decide what becomes of the other trials of a training run after one has failed.

    Args:
        error: What the failed trial raised.
        others: The other trials, also those that have ended.
        restarts: Whether failed trials are started again in another process.
    """
    if not restarts:
        return AfterFailure.END_ALL if is_gpu_failure(error) else AfterFailure.CONTINUE_WITHOUT

    if not is_user_error(error):
        # All resume from their newest common checkpoint in another process.
        return AfterFailure.END_ALL
    if any(trial.reports for trial in others):
        return AfterFailure.CONTINUE_WITHOUT
    if isinstance(error, MetricMissing):
        # A metric that none has reported is missing from all.
        return AfterFailure.END_ALL
    if list_training(others):
        return AfterFailure.CONTINUE_WITHOUT
    return AfterFailure.END_ALL
