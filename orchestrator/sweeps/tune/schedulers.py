"""Ray Tune's schedulers for a sweep, and the keys of a trial's config and results. Used in the
driver."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler

from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.sections import sweep as settings_of
from orchestrator.experiment.sections.sweep import PBT, Sweep
from orchestrator.private_api.ray_tune import (
    Bands,
    Exploiting,
    Halving,
    Median,
    call_before_next_step,
)
from orchestrator.sweeps.results.population import History
from orchestrator.sweeps.search.search import make_trial_config, mutate
from orchestrator.sweeps.stopping_rules import SCHEDULER_REASON
from orchestrator.tables.configurations import compute_score
from orchestrator.tables.trial_index import TrialRecord

TRIAL = "trial"
"""Key of a config: the trial's number, values and followers."""
REPORTED = "reported"
"""Key of a shared result: the number of the trial that reported; None once all have ended."""
FAILED = "failed"
"""Key of a shared result: the numbers of trials that failed since the last result."""
SECONDS = "seconds"
"""Key of a result: the trial's training time, including earlier attempts."""
_MAX_REPORTS = 1_000_000
"""Upper bound of a trial's number of reports."""
_WORST = 1e300
"""Magnitude of a value that is not finite. ASHA interpolates between values, so an infinite one
would give NaN."""
_OWN_PARAMETERS = {"type", "mutate", "resample_probability", "perturbation_factors"}
"""Parameters that are not passed to Tune's schedulers, because Hookyard draws new values from the
domains."""


def make_tune_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {TRIAL: make_trial_config(number, values)}


def make_scheduler(
    settings: Sweep,
    previous: Mapping[int, TrialRecord],
    reasons: Mapping[str, str] | None = None,
    history: History | None = None,
) -> TrialScheduler:
    """Make Tune's scheduler for a sweep. Its time unit is the number of reports.

    `reasons` has the trials that the stopping rules stop. A population records its exploits in
    `history`.
    """
    arguments = (settings, previous, reasons or {})
    # The names of the options are Tune's own.
    options = settings.scheduler.model_dump(exclude=_OWN_PARAMETERS, exclude_none=True)
    match settings.scheduler:
        case settings_of.Asha():
            return _SweepScheduler.extending(Halving)(
                *arguments, **{"max_t": _MAX_REPORTS, **options}
            )
        case settings_of.HyperBand():
            return _SweepScheduler.extending(Bands)(*arguments, **options)
        case settings_of.Median():
            return _SweepScheduler.extending(Median)(
                *arguments, time_attr=TRAINING_ITERATION, **options
            )
        case PBT():
            # Tune requires some mutations; `next_config` makes the real ones.
            options["hyperparam_mutations"] = {TRIAL: {}}
            options["time_attr"] = TRAINING_ITERATION
            options["log_config"] = False
            return _Population.extending(PopulationBasedTraining)(
                *arguments, history=history, **options
            )
        case _:
            return _SweepScheduler(*arguments)


class _TrialStandIn:
    """Stand-in for a trial that is not one of Tune's: it has ended, runs in this process, or shares
    a training run.

    It also acts as Tune's controller of that trial.
    """

    def __init__(self, number: int) -> None:
        self.trial_id, self.config = trial_name(number), make_tune_config(number, {})
        self.last: dict[str, Any] = {}

    def get_live_trials(self) -> list[Any]:
        return []


class _SweepScheduler(FIFOScheduler):
    """Base class of a sweep's schedulers.

    It replays earlier reports, and applies the rule to each trial that shares a training run. For
    repeats the rule gets the aggregate of the trials with as many reports.
    """

    @classmethod
    def extending(cls, base: Any) -> Any:
        """Return a subclass of one of Tune's schedulers, which are all based on FIFOScheduler."""
        return type(base.__name__, (cls, base), {})

    def __init__(
        self,
        settings: Sweep,
        previous: Mapping[int, TrialRecord],
        reasons: Mapping[str, str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._settings, self._previous, self._reasons = settings, dict(previous), reasons
        self._sharing: dict[int, _TrialStandIn] = {}
        self._last: dict[str, dict[str, Any]] = {}
        """Last report of each resumed trial before the resume. Most trials repeat it."""
        self._metrics_of_repeats: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        """Metric of each trial, by configuration and number of reports."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial that is new or restarts after a failure."""
        for number in [number for number, previous in self._previous.items() if previous.has_ended]:
            self._replay(_TrialStandIn(number), self._previous.pop(number))
        for stand_in in self._list_trials(trial):
            self._add(tune_controller, stand_in)
            if previous := self._previous.pop(stand_in.config[TRIAL]["number"], None):
                self._replay(stand_in, previous)

    def _add(self, tune_controller: Any, trial: Any) -> None:
        # ASHA draws the trial's bracket, which must be the same after a resume.
        with seeded(self._settings.seed + trial.config[TRIAL]["number"]):
            super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide after a report. In a shared training run, only the trial that reported can
        stop."""
        if REPORTED not in result:
            return self._decide(tune_controller, trial, result)
        stand_in = self._sharing[result[REPORTED]]
        stand_in.last = result
        decision = self._decide(stand_in, stand_in, result)
        reason = self._reasons.get(trial_name(result[REPORTED]))
        if reason or decision == TrialScheduler.STOP:
            call_before_next_step(
                tune_controller, trial, "drop", result[REPORTED], reason or SCHEDULER_REASON
            )
        return str(TrialScheduler.CONTINUE)

    def _decide(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        last = self._last.pop(trial.trial_id, None)
        if last and last[TRAINING_ITERATION] < result[TRAINING_ITERATION]:
            self.replay_results(trial, [self._aggregate(trial, last)])
        return str(super().on_trial_result(tune_controller, trial, self._aggregate(trial, result)))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        for stand_in in self._list_trials(trial):
            if last := result if stand_in is trial else stand_in.last:
                super().on_trial_complete(
                    tune_controller, stand_in, self._aggregate(stand_in, last)
                )
            else:
                super().on_trial_remove(tune_controller, stand_in)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        for stand_in in self._list_trials(trial):
            super().on_trial_remove(tune_controller, stand_in)

    def _list_trials(self, trial: Any) -> list[Any]:
        """Return the trial, or stand-ins for the trials of a shared training run."""
        config = trial.config[TRIAL]
        if not config["followers"]:
            return [trial]
        numbers = [entry["number"] for entry in (config, *config["followers"])]
        return [self._sharing.setdefault(number, _TrialStandIn(number)) for number in numbers]

    def _aggregate(self, trial: Any, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result whose metric is the aggregate of its configuration; the worst value if
        that is not finite."""
        (metric, mode), repeats = self._settings.objectives[0], self._settings.repeats
        if metric not in result:
            return result
        number = trial.config[TRIAL]["number"]
        values = (
            self._metrics_of_repeats[number // repeats, result[TRAINING_ITERATION]]
            if repeats > 1
            else {}
        )
        values[number] = result[metric]
        score = compute_score([*values.values()], mode, self._settings.aggregate)
        if not math.isfinite(score):
            score = (
                math.nan if isinstance(self, Exploiting) else -_WORST if mode == "max" else _WORST
            )
        return {**result, metric: score}

    def _replay(self, trial: Any, previous: TrialRecord) -> None:
        """Pass a trial's earlier reports to a scheduler that compares trials.

        If the trial continues, its last report may still need a decision.
        """
        if not isinstance(self, Halving | Median):
            return
        results = [
            {**report, TRAINING_ITERATION: count}
            for count, report in enumerate(previous.compared_reports, 1)
        ]
        if results and not previous.has_ended:
            self._last[trial.trial_id] = results.pop()
        if previous.has_ended:
            self._add(trial, trial)
        self.replay_results(trial, [self._aggregate(trial, result) for result in results])


class _Population(_SweepScheduler, Exploiting):
    """A population that stays within the domains of the space, and records its exploits."""

    def __init__(self, settings: Sweep, *arguments: Any, history: History, **options: Any) -> None:
        super().__init__(settings, *arguments, **options)
        remaining = [trial for trial in self._previous.values() if not trial.has_ended]
        reports = max((len(trial.compared_reports) for trial in remaining), default=0)
        self.compare_first_after(reports, options.get("burn_in_period", 0))
        self._history = history
        self._random = np.random.RandomState(settings.seed)

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
        self._history.append(
            trial=trial_name(trial.config[TRIAL]["number"]),
            source=trial_name(source.config[TRIAL]["number"]),
            report=result[TRAINING_ITERATION],
            epoch=result["epoch"],
            step=result["step"],
            score=score,
            source_score=source_score,
            before=source.config[TRIAL]["values"],
            after=trial.config[TRIAL]["values"],
        )


class SequentialScheduler:
    """`asha` or `median` for trials that run one after the other or share a training run, without
    Ray running."""

    def __init__(self, settings: Sweep, previous: Mapping[int, TrialRecord]) -> None:
        self._scheduler: Any = make_scheduler(settings, previous)
        self._scheduler.set_search_properties(*settings.objectives[0])
        self._trials: dict[int, _TrialStandIn] = {}

    def add(self, number: int) -> None:
        trial = self._trials[number] = _TrialStandIn(number)
        self._scheduler.on_trial_add(trial, trial)

    def should_stop(self, number: int, report: Mapping[str, Any], count: int) -> bool:
        """Return whether a trial stops at this report, its `count`-th with the sweep's metric."""
        trial, result = self._trials[number], {**report, TRAINING_ITERATION: count}
        return bool(self._scheduler.on_trial_result(trial, trial, result) == TrialScheduler.STOP)

    def remove(self, number: int, last: Mapping[str, Any] | None, count: int) -> None:
        trial = self._trials.pop(number)
        self._scheduler.on_trial_complete(trial, trial, {**(last or {}), TRAINING_ITERATION: count})


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that Tune's schedulers draw from, and restore them at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
