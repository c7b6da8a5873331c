"""The parts of a running sweep. Driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.config.checks.shared_training import shared_paths
from orchestrator.config.sections.experiment import Experiment
from orchestrator.config.sections.sweep import Race as RaceSettings
from orchestrator.config.sections.sweep import Sweep
from orchestrator.records.run_folder import RunFolder
from orchestrator.stats.aggregate.trial_index import TrialIndex
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.race import Race
from orchestrator.sweeps.search.search import DrawnTrials, OptunaTrials, Search
from orchestrator.sweeps.stopping_rules import StoppingRules
from orchestrator.sweeps.trial_announcer import TrialAnnouncer


@dataclass(frozen=True)
class SweepContext:
    """Parts that run trials, in this process or on Ray."""

    experiment: Experiment
    settings: Sweep
    folder: RunFolder
    previous: Mapping[int, PreviousTrial]
    """Trials of earlier attempts, by number."""
    search: Search
    rules: StoppingRules
    announcer: TrialAnnouncer
    index: TrialIndex


def make_search(
    experiment: Experiment,
    settings: Sweep,
    previous: Mapping[int, PreviousTrial],
    tell: Callable[[str], None] = lambda line: None,
) -> Search:
    """Return the search that the settings name, with what earlier attempts found. `tell` shows a line."""
    if isinstance(settings.scheduler, RaceSettings):
        return Race(settings, experiment.seed, previous, tell)
    kind = OptunaTrials if settings.search == "optuna" else DrawnTrials
    return kind(settings, experiment.seed, previous, shared_paths(experiment.source, settings))
