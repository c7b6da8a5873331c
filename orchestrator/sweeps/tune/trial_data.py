"""Keys of the data that Ray Tune passes between the driver and a trial."""

from collections.abc import Mapping
from typing import Any

from orchestrator.sweeps.search.search import make_trial_config

TRIAL = "trial"
"""Key of a config: a `TrialConfig`."""
REPORTED = "reported"
"""Key of a shared result: the number of the trial that reported; None once all have ended. A
single trial's result has it, with None, only if the trial was interrupted before any report."""
FAILED = "failed"
"""Key of a shared result: the numbers of trials that failed since the last result."""
SECONDS = "seconds"
"""Key of a result: the trial's training time, including earlier attempts."""


def make_tune_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {TRIAL: make_trial_config(number, values)}
