"""What becomes of the trials of a training run after one of them has failed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import MetricMissing
from orchestrator.sweeps.active_trial import TrialState
from orchestrator.sweeps.after_failure import AfterFailure, decide_after_failure

CONTINUE = AfterFailure.CONTINUE_WITHOUT
END = AfterFailure.END_ALL

BUG = TypeError("a bug of a hook")
DEATH = RankFailed.died(0, 1)
NO_METRIC = MetricMissing("no report of a trial has the sweep's metric 'val/loss'")
LOST_GPU = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def trial(state: TrialState, reports: int) -> Any:
    return SimpleNamespace(state=state, reports=[{"val/loss": 0.5}] * reports)


TRAINS = trial(TrialState.TRAINING, 0)
TRAINS_AND_REPORTED = trial(TrialState.TRAINING, 1)
REPORTED = trial(TrialState.ENDED, 1)
FAILED = trial(TrialState.ENDED, 0)


@pytest.mark.parametrize(
    ("error", "others", "expected"),
    [
        # A bug would happen again, but not in the others.
        (BUG, [TRAINS], CONTINUE),
        (BUG, [FAILED, TRAINS], CONTINUE),
        (BUG, [TRAINS_AND_REPORTED], CONTINUE),
        # Tune needs a result, which the one that has reported gives.
        (BUG, [REPORTED], CONTINUE),
        (BUG, [FAILED], END),
        (BUG, [], END),
        # Another process may not die.
        (DEATH, [TRAINS], END),
        (DEATH, [REPORTED], END),
        (OSError("no route to host"), [TRAINS_AND_REPORTED], END),
        # The others will not report the metric either, unless one has.
        (NO_METRIC, [TRAINS], END),
        (NO_METRIC, [TRAINS, TRAINS_AND_REPORTED], CONTINUE),
        (NO_METRIC, [], END),
    ],
)
def test_the_others_continue_where_a_restart_would_not_help(
    error: Exception, others: list[Any], expected: AfterFailure
) -> None:
    assert decide_after_failure(error, others, restarts=True) is expected


@pytest.mark.parametrize("error", [BUG, DEATH, NO_METRIC])
@pytest.mark.parametrize("others", [[], [TRAINS], [FAILED]])
def test_without_restarts_the_others_always_try(error: Exception, others: list[Any]) -> None:
    assert decide_after_failure(error, others, restarts=False) is CONTINUE


def test_without_restarts_no_trial_can_use_a_lost_gpu() -> None:
    assert decide_after_failure(LOST_GPU, [TRAINS], restarts=False) is END
