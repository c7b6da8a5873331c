"""The ranking of a sweep's trials, and which of them can be the best. Imports no pandas."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from orchestrator.tables.configurations import Configuration, RankedTrial, rank_configurations
from orchestrator.units import is_number


class Ranking(NamedTuple):
    """The trials of a sweep that can be the best, and its configurations."""

    trials: Sequence[str]
    """Their names, best first. Repeats stay together, in the order of their configurations."""
    configurations: Sequence[Configuration]
    """All configurations of a sweep with repeats, best first."""


def rank_trials(trials: Iterable[RankedTrial], mode: str, aggregate: str = "mean") -> Ranking:
    """Rank trials by their values. Those that cannot be the best do not count in their
    configurations."""
    trials = [*trials]
    eligible = list_eligible(trials)
    if all(trial.configuration is None for trial in trials):
        sign = -1 if mode == "max" else 1
        rated = [
            (sign * trial.value, trial.name)
            for trial in eligible
            if trial.value is not None and is_number(trial.value)
        ]
        return Ranking([name for _, name in sorted(rated)], [])

    names = {trial.name for trial in eligible}
    repeats = [
        trial if trial.name in names else trial._replace(value=None)
        for trial in trials
        if trial.configuration is not None
    ]
    configurations = rank_configurations(repeats, mode, aggregate)
    ranked = chain.from_iterable(configuration.trials for configuration in configurations)
    return Ranking([*ranked], configurations)


def list_eligible(trials: Sequence[RankedTrial]) -> list[RankedTrial]:
    """Return the trials that did not fail and break no constraint, nor does a repeat of theirs."""
    broken = {trial.configuration for trial in trials if trial.infeasible} - {None}
    return [
        trial
        for trial in trials
        if trial.status != "failed" and not trial.infeasible and trial.configuration not in broken
    ]
