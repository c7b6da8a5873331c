"""Ray Tune's schedulers, as the sweep's settings say. Driver."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler

from orchestrator.config.sections import sweep as settings_of
from orchestrator.config.sections.sweep import PB2, PBT, Sweep
from orchestrator.private_api.ray_tune import ask_before_next_step
from orchestrator.private_api.ray_tune_schedulers import Bands, Exploiting, Halving, Median
from orchestrator.records.sweep_folder import trial_name
from orchestrator.stats.aggregate.configurations import group_merit
from orchestrator.sweeps.results.population_history import History
from orchestrator.sweeps.results.previous_trials import PreviousTrial
from orchestrator.sweeps.search.sampling import bounds, clipped, mutated
from orchestrator.sweeps.tune.tune_config import REPORTED, TRIAL, tune_config

LONGEST = 1_000_000
"""More reports than any trial makes: a trial ends by itself."""

OUR_OWN = {"type", "mutate", "resample_probability", "perturbation_factors"}
"""Parameters that Tune's schedulers do not see: new values are drawn within the space's domains."""


def make_scheduler(
    settings: Sweep, history: History, previous: Mapping[int, PreviousTrial], is_mistake: Callable[[int], bool]
) -> TrialScheduler:
    """Tune's scheduler for a sweep; its time is the number of reports.

    `previous` is what an earlier attempt of the sweep has left; `is_mistake` says of a trial by its number whether it
    failed in a way that would come again, so that it is not started anew.
    """
    keeps = (settings, previous, is_mistake)
    # Their names are Tune's own.
    options = settings.scheduler.model_dump(exclude=OUR_OWN, exclude_none=True)
    match settings.scheduler:
        case settings_of.Asha():
            return _ReplayingScheduler.extending(Halving)(*keeps, **{"max_t": LONGEST, **options})
        case settings_of.HyperBand():
            return _ReplayingScheduler.extending(Bands)(*keeps, **options)
        case settings_of.Median():
            return _ReplayingScheduler.extending(Median)(*keeps, time_attr=TRAINING_ITERATION, **options)
        case PBT():
            # The paths that change are our own affair; Tune wants some.
            options |= {"hyperparam_mutations": {TRIAL: {}}, "time_attr": TRAINING_ITERATION, "log_config": False}
            return _Population.extending(PopulationBasedTraining)(*keeps, history=history, **options)
        case PB2():
            from ray.tune.schedulers.pb2 import PB2 as TunesPB2

            # Both ends of what changes in flight, where its value stands in a trial's config.
            options |= {
                "hyperparam_bounds": {TRIAL: {"values": bounds(settings)}},
                "time_attr": TRAINING_ITERATION,
                "log_config": False,
            }
            return _Population.extending(TunesPB2)(*keeps, history=history, **options)
    return _ReplayingScheduler(*keeps)


class _TrialStandIn:
    """Stands for a trial of an earlier attempt that is over; or for one that runs by itself or shares a training, and
    for Tune's loop around it, in which no other one waits."""

    def __init__(self, number: int) -> None:
        self.trial_id, self.config = trial_name(number), tune_config(number, {})
        self.last: dict[str, Any] = {}
        """Its last report, where it shares a training."""

    def get_live_trials(self) -> list[Any]:
        """None that a scheduler would let go first."""
        return []


class _ReplayingScheduler(FIFOScheduler):
    """What every scheduler of a sweep does beside its own rule: learns what was reported before, lets rest what would
    fail again, judges each of the trials that share a training by itself, of which Tune knows one, and sees of trials
    that repeat each other the mean of those that have come as far."""

    @classmethod
    def extending(cls, base: Any) -> Any:
        """A scheduler class of Tune's that does this too; all of them are made on Tune's FIFOScheduler."""
        return type(base.__name__, (cls, base), {})

    def __init__(
        self, settings: Sweep, previous: Mapping[int, PreviousTrial], is_mistake: Callable[[int], bool], **options: Any
    ) -> None:
        super().__init__(**options)
        self._settings, self._previous, self._is_mistake = settings, dict(previous), is_mistake
        self._sharing: dict[int, _TrialStandIn] = {}
        self._repeated: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        """Configuration and number of a report to what each trial has reported there."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """A trial is new, or is to be started anew after a failure."""
        for number in [number for number, one in self._previous.items() if one.over]:
            self._replay(_TrialStandIn(number), self._previous.pop(number))
        mistakes = []
        for judged in self._judged(trial):
            super().on_trial_add(tune_controller, judged)
            number = judged.config[TRIAL]["number"]
            mistakes.append(number not in self._previous and self._is_mistake(number))
            if number in self._previous:
                self._replay(judged, self._previous.pop(number))
        if all(mistakes):
            tune_controller.stop_trial(trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """A trial has reported, or one of those that share a training: that one alone is stopped."""
        if REPORTED not in result:
            return str(super().on_trial_result(tune_controller, trial, self._of_the_group(trial, result)))
        judged = self._sharing[result[REPORTED]]
        judged.last = result
        if super().on_trial_result(judged, judged, self._of_the_group(judged, result)) == TrialScheduler.STOP:
            ask_before_next_step(tune_controller, trial, "drop", result[REPORTED])
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """A trial is over, or all of those that share a training."""
        for judged in self._judged(trial):
            super().on_trial_complete(
                tune_controller, judged, self._of_the_group(judged, result if judged is trial else judged.last)
            )

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """A trial that waits is given up, or all of those that share a training."""
        for judged in self._judged(trial):
            super().on_trial_remove(tune_controller, judged)

    def _judged(self, trial: Any) -> list[Any]:
        """A trial, or what stands for each of those that share a training."""
        chosen = trial.config[TRIAL]
        if not chosen["followers"]:
            return [trial]
        return [
            self._sharing.setdefault(one["number"], _TrialStandIn(one["number"]))
            for one in (chosen, *chosen["followers"])
        ]

    def _of_the_group(self, trial: Any, result: dict[str, Any]) -> dict[str, Any]:
        """A trial's result with the mean of its configuration, or its bound, in place of its metric."""
        (metric, mode), repeats = self._settings.objectives[0], self._settings.repeats
        if repeats == 1 or metric not in result:
            return result
        number = trial.config[TRIAL]["number"]
        there = self._repeated[number // repeats, result[TRAINING_ITERATION]]
        there[number] = result[metric]
        return {**result, metric: group_merit([*there.values()], mode, self._settings.aggregate)}

    def _replay(self, trial: Any, previous: PreviousTrial) -> None:
        """Hands a trial's earlier reports to a rule that compares it with others; nothing is decided by it."""
        if isinstance(self, Halving | Median):
            results = [{**report, TRAINING_ITERATION: made} for made, report in enumerate(previous.reports, 1)]
            self.replay_results(trial, [self._of_the_group(trial, result) for result in results])


class _Population(_ReplayingScheduler, Exploiting):
    """What a population scheduler of a sweep does beside Tune's own rule: it stays in the space's domains, and writes
    down who went on from whom."""

    def __init__(self, settings: Sweep, *keeps: Any, history: History, **options: Any) -> None:
        super().__init__(settings, *keeps, **options)
        self._history = history
        reached = max((len(one.reports) for one in self._previous.values() if not one.over), default=0)
        self.look_first_after(reached, options.get("burn_in_period", 0))
        self._random = np.random.RandomState(settings.seed)

    def next_config(self, trial: Trial, source: Trial, tunes_own: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        values = source.config[TRIAL]["values"]
        if isinstance(self._settings.scheduler, PBT):
            values = mutated(self._settings, values, self._random)
        else:
            # What PB2 chooses goes through float32, and may come out beyond its end.
            values = {**values, **clipped(self._settings, tunes_own()[TRIAL]["values"])}
        return tune_config(trial.config[TRIAL]["number"], values)

    def exploited(
        self, trial: Trial, source: Trial, result: Mapping[str, Any], score: float, source_score: float
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
    """A scheduler over trials that run one after the other, or share a training: asha or median. In a process where no
    Ray is running."""

    def __init__(self, settings: Sweep, history: History, previous: Mapping[int, PreviousTrial]) -> None:
        self._scheduler: Any = make_scheduler(settings, history, previous, lambda number: False)
        self._scheduler.set_search_properties(*settings.objectives[0])
        self._trials: dict[int, _TrialStandIn] = {}
        self._seed = settings.seed

    def begins(self, number: int) -> None:
        """A trial begins."""
        trial = self._trials[number] = _TrialStandIn(number)
        with seeded(self._seed + number):
            self._scheduler.on_trial_add(trial, trial)

    def stops(self, number: int, report: Mapping[str, Any], made: int) -> bool:
        """Whether a trial ends with this report, which is the `made`-th of it that holds the sweep's metric."""
        trial, result = self._trials[number], {**report, TRAINING_ITERATION: made}
        return bool(self._scheduler.on_trial_result(trial, trial, result) == TrialScheduler.STOP)

    def ended(self, number: int, last: Mapping[str, Any] | None, made: int) -> None:
        """A trial is over."""
        trial = self._trials.pop(number)
        self._scheduler.on_trial_complete(trial, trial, {**(last or {}), TRAINING_ITERATION: made})


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
