"""A sweep that is compared with others. Used in the driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Self

import pandas as pd

from orchestrator.column_names import CONFIG
from orchestrator.sweeps.results.ranking import (
    list_configurations,
    select_candidates,
    sort_best_first,
)
from orchestrator.sweeps.results.result import Sweep
from orchestrator.tables.configurations import Configuration


@dataclass(frozen=True)
class ComparedSweep:
    """A sweep that is compared: its trials, and the settings that order them."""

    trials: pd.DataFrame
    """Its trials, best first."""
    objectives: Mapping[str, str]
    """Each metric with its mode; the first one orders the trials."""
    aggregate: str
    repeated_path: str

    @classmethod
    def read(cls, sweep: Sweep) -> Self:
        objectives = dict(sweep.objectives)
        trials = sort_best_first(sweep.trials, objectives, sweep.aggregate)
        return cls(trials, objectives, sweep.aggregate, sweep.repeated_path)

    @property
    def best_trial(self) -> Any:
        """The row of the best trial; None if no trial counts."""
        candidates = select_candidates(self.trials, next(iter(self.objectives)))
        return candidates.iloc[0] if len(candidates) else None

    def has_configurations(self, metric: str) -> bool:
        """Return whether the sweep has repeats, and trials with a metric."""
        return "configuration" in self.trials and metric in self.trials

    def find_best_configuration(self, metric: str, mode: str) -> Configuration | None:
        """Return the best configuration; None if none has a mean."""
        configurations = list_configurations(self.trials, metric, mode, self.aggregate)
        if not configurations or isnan(configurations[0].mean):
            return None
        return configurations[0]


def list_parameters(table: pd.DataFrame) -> list[str]:
    """Return the columns of the values that a sweep sets."""
    return [name for name in map(str, table) if name.startswith(CONFIG)]
