"""The choice of a sweep's search: a race, Optuna, or values drawn before the first trial."""

from collections.abc import Callable, Mapping

from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sweep.shared_training import find_shared_paths
from orchestrator.sweeps.search.optuna_trials import OptunaTrials
from orchestrator.sweeps.search.race import RacingTrials
from orchestrator.sweeps.search.search import DrawnTrials, Search
from orchestrator.tables.trial_record import TrialRecord


def make_search(
    experiment: Experiment,
    previous: Mapping[int, TrialRecord],
    show_line: Callable[[str], None],
) -> Search:
    """Make the search of a sweep. `previous` are the trials of earlier attempts by number."""
    settings = experiment.sweep
    assert settings is not None
    if isinstance(settings.scheduler, Race):
        return RacingTrials(settings, experiment.seed, previous, show_line)
    shared = find_shared_paths(experiment.source, settings)
    search = settings.search
    if isinstance(search, OptunaSearch):
        return OptunaTrials(settings, search, experiment.seed, previous, shared)
    return DrawnTrials(settings, experiment.seed, previous, shared)
