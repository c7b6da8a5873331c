"""Keys of the data that Ray Tune passes between the driver and a trial."""

from collections.abc import Mapping
from typing import Any

from orchestrator.sweeps.search.search import make_trial_config

TRIAL = "trial"
"""Key of a config: a `TrialConfig`."""
REPORTED = "reported"
"""Key of a result: the number of the trial whose report it is; None if it is no report."""
FAILED = "failed"
"""Key of a result: the numbers of trials that have failed since the last result, while the others of
their training run continue."""
SECONDS = "seconds"
"""Key of a result: the trial's training time, including earlier attempts."""


def make_tune_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {TRIAL: make_trial_config(number, values)}
