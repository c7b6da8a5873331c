"""Trials that begin together: those that share a training run, or a single one.

This code runs in the driver, or under Tune in the trial's process.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.errors import ConfigError
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.sweeps.active_trial import ActiveTrial
from orchestrator.sweeps.search.search import NumberedValues


@dataclass(frozen=True)
class BegunTrials:
    """Trials that have begun, and those that could not begin."""

    trials: Sequence[ActiveTrial]
    refused: Sequence[tuple[NumberedValues, ConfigError]]
    """Trials that have failed, because their values are invalid together, and why."""


def begin_trials(
    members: Iterable[NumberedValues],
    location: str,
    source: ExperimentSource,
    settings: SweepSettings,
) -> BegunTrials:
    """Begin or continue trials that share a training run, or a single one."""
    trials = []
    refused = []
    for member in members:
        number = member["number"]
        try:
            trial = ActiveTrial.begin(location, number, source, settings, member["values"])
        except ConfigError as error:
            refused.append((member, error))
        else:
            trials.append(trial)
    return BegunTrials(trials, refused)
