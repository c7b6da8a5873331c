"""The context of a sweep: what is left of it, and who hears how it goes. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.stats.aggregate.trial_index import TrialIndex
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.trial_announcer import TrialAnnouncer


@dataclass(frozen=True)
class SweepContext:
    """What runs the trials of a sweep is given, in this process or on Ray."""

    experiment: Experiment
    settings: Sweep
    folder: RunFolder
    previous: Mapping[int, PreviousTrial]
    """What an earlier attempt of it has left, by number."""
    rules: StoppingRules
    announcer: TrialAnnouncer
    index: TrialIndex
