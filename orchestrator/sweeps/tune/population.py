"""A population under Ray Tune: trials that continue from the weights of better ones."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.private_api.ray_tune_schedulers import Exploiting
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.search.mutation import mutate
from orchestrator.sweeps.tune.trial_data import SCORE, TRIAL, TrialResult, make_tune_config
from orchestrator.tables.trial_record import TrialRecord


class Population(Exploiting):
    """A population that stays within the domains of the space, and records its exploits."""

    def __init__(
        self, settings: SweepSettings, previous: Mapping[int, TrialRecord], history: History
    ) -> None:
        scheduler = settings.scheduler
        assert isinstance(scheduler, PBT)
        super().__init__(
            time_attr=TRAINING_ITERATION,
            perturbation_interval=scheduler.perturbation_interval,
            burn_in_period=scheduler.burn_in_period,
            quantile_fraction=scheduler.quantile_fraction,
            synch=scheduler.synch,
            # Tune requires some mutations; `next_config` makes the real ones.
            hyperparam_mutations={TRIAL: {}},
            log_config=False,
        )
        continued = [trial for trial in previous.values() if not trial.has_ended]
        reports = max((len(trial.compared_reports) for trial in continued), default=0)
        self.compare_first_after(reports, scheduler.burn_in_period)

        self._settings = settings
        self._history = history
        self._random = np.random.RandomState(settings.seed)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        # For Tune an infinite result might be the best one, and NaN is the worst.
        if not math.isfinite(result[SCORE]):
            result = {**result, SCORE: math.nan}
        return str(super().on_trial_result(tune_controller, trial, result))

    def next_config(self, trial: Trial, source: Trial) -> dict[str, Any]:
        values = mutate(self._settings, source.config[TRIAL]["values"], self._random)
        return make_tune_config(trial.config[TRIAL]["number"], values)

    def record_exploit(
        self,
        trial: Trial,
        source: Trial,
        result: Mapping[str, Any],
        score: float,
        source_score: float,
    ) -> None:
        report = TrialResult.read(result).report
        assert report is not None
        self._history.append(
            trial=trial_name(trial.config[TRIAL]["number"]),
            source=trial_name(source.config[TRIAL]["number"]),
            report=report.count,
            epoch=report.metrics["epoch"],
            step=report.metrics["step"],
            score=score,
            source_score=source_score,
            before=source.config[TRIAL]["values"],
            after=trial.config[TRIAL]["values"],
        )
