"""The config of a trial in Tune, and keys of its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.sweeps.search.search import trial_config

TRIAL = "trial"
"""In a config: the trial's number, values and followers."""
REPORTED = "reported"
"""In a result of trials that share a training: the number of the trial that reported, None once all are over."""
FAILED = "failed"
"""In a result of trials that share a training: the numbers of trials that failed since the last result."""


def tune_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a trial without followers."""
    return {TRIAL: trial_config(number, values)}
