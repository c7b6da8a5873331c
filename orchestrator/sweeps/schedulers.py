"""Ray Tune's schedulers, as the sweep's settings say. Driver."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)

from orchestrator.config import sweep as settings_of
from orchestrator.config.sweep import PB2, PBT, Population, Sweep
from orchestrator.sweeps.folder import trial_name
from orchestrator.sweeps.history import History
from orchestrator.sweeps.search import TRIAL, trial_config
from orchestrator.sweeps.space import bounds, clipped, mutated

LONGEST = 1_000_000
"""More reports than any trial makes: a trial ends by itself."""


def make_scheduler(settings: Sweep, history: History) -> TrialScheduler:
    """Tune's scheduler for a sweep; its time is the number of reports."""
    match settings.scheduler:
        case settings_of.Asha() as asha:
            return ASHAScheduler(
                max_t=asha.max_t or LONGEST,
                grace_period=asha.grace_period,
                reduction_factor=asha.reduction_factor,
                brackets=asha.brackets,
            )
        case settings_of.HyperBand() as hyperband:
            return HyperBandScheduler(max_t=hyperband.max_t, reduction_factor=hyperband.reduction_factor)
        case settings_of.Median() as median:
            return MedianStoppingRule(
                time_attr=TRAINING_ITERATION,
                grace_period=median.grace_period,
                min_samples_required=median.min_samples_required,
            )
        case PBT() as pbt:
            # The paths that change are our own affair; Tune wants some.
            common = {"hyperparam_mutations": {TRIAL: {}}, "burn_in_period": pbt.burn_in_period}
            return _population(PopulationBasedTraining)(settings, history, **common, **_common(pbt))
        case PB2() as pb2:
            from ray.tune.schedulers.pb2 import PB2 as TunesPB2

            return _population(TunesPB2)(settings, history, hyperparam_bounds=trial_bounds(settings), **_common(pb2))
    return FIFOScheduler()


def _common(population: Population) -> dict[str, Any]:
    return {
        "time_attr": TRAINING_ITERATION,
        "perturbation_interval": population.perturbation_interval,
        "quantile_fraction": population.quantile_fraction,
        "synch": population.synch,
        "log_config": False,
    }


def trial_bounds(settings: Sweep) -> dict[str, Any]:
    """Both ends of what changes in flight, where its value stands in a trial's config."""
    return {TRIAL: {"values": bounds(settings)}}


def _population(base: Any) -> Any:
    """A population scheduler of Tune's that stays in the space's domains, and writes down who went on from whom."""

    class Kept(base):
        def __init__(self, settings: Sweep, history: History, **options: Any) -> None:
            super().__init__(**options)
            self._settings, self._history = settings, history
            self._random = np.random.RandomState(settings.seed)

        def _get_new_config(self, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
            values = trial_to_clone.config[TRIAL]["values"]
            if isinstance(self._settings.scheduler, PBT):
                values = mutated(self._settings, values, self._random)
            else:
                chosen, _ = super()._get_new_config(trial, trial_to_clone)
                # What PB2 chooses goes through float32, and may come out beyond its end.
                values = {**values, **clipped(self._settings, chosen[TRIAL]["values"])}
            return trial_config(trial.config[TRIAL]["number"], values), {}

        def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
            before = trial_to_clone.config[TRIAL]["values"]
            own, source = self._trial_state[trial], self._trial_state[trial_to_clone]
            super()._exploit(tune_controller, trial, trial_to_clone)
            self._history.append(
                trial=trial_name(trial.config[TRIAL]["number"]),
                source=trial_name(trial_to_clone.config[TRIAL]["number"]),
                report=source.last_result[TRAINING_ITERATION],
                epoch=source.last_result["epoch"],
                step=source.last_result["step"],
                score=self._metric_op * own.last_score,
                source_score=self._metric_op * source.last_score,
                before=before,
                after=trial.config[TRIAL]["values"],
            )

    return Kept


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it the generators that Tune's schedulers draw from begin with a seed; afterwards they are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
