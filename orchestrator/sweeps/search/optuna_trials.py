"""`search: optuna`: trials that a sampler of Optuna suggests. Used in the driver."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.disk.sweep_folder import trial_number
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.grid import make_fan_out_points
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.experiment.sweep.trial_counts import count_trainings, count_trials
from orchestrator.sweeps.search.drawing import fill_point, repeat
from orchestrator.sweeps.search.earlier_sweep import read_earlier_trials
from orchestrator.sweeps.search.optuna_outcomes import EndedTrial, find_best_outcome
from orchestrator.sweeps.search.optuna_space import make_params, suggest
from orchestrator.sweeps.search.search import Search, TrialConfig
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_record import TrialRecord

if TYPE_CHECKING:
    import optuna


class OptunaTrials(Search):
    """Optuna's suggestions, which also learn from earlier attempts of the sweep; unfinished
    trials come first.

    Each suggestion has a trial for each repeat and each `fan_out` value. Once all of these have
    ended, Optuna learns the aggregate of the best configuration, without failed trials. Trials keep
    their numbers, so a resumed sweep repeats a suggestion whose trials never started.
    """

    def __init__(
        self,
        settings: SweepSettings,
        search: OptunaSearch,
        seed: int,
        previous: Mapping[int, TrialRecord],
        shared: SharedPaths,
    ) -> None:
        super().__init__(settings, shared)
        self._seed = seed
        self._size = len(make_fan_out_points(settings)) * settings.repeat_count
        """Number of trials per suggestion."""
        self._study = _make_study(settings, search, len(previous))
        if search.earlier:
            self._study.add_trials(read_earlier_trials(search.earlier, settings))
        self._suggestions: list[optuna.Trial] = []
        self._results: defaultdict[int, dict[int, EndedTrial | None]] = defaultdict(dict)
        """Result of each ended trial, by suggestion and number; None if it failed."""
        self._constraints = Constraints(settings.constraints)

        n_suggested = max(previous, default=-1) // self._size + 1
        self._fix_suggestions(n_suggested, previous)
        for _ in range(n_suggested):
            self._suggest_again(previous)
        self.count = len(self._queue) + count_trainings(settings, n_suggested * self._size)

    def _fix_suggestions(self, n_suggested: int, previous: Mapping[int, TrialRecord]) -> None:
        """Let Optuna begin with the suggestions of earlier attempts, and with the sweep's
        `points`."""
        points = dict(enumerate(self._settings.points))
        for number, trial in previous.items():
            points[number // self._size] = dict(trial.values)
        for suggestion in range(max(n_suggested, len(self._settings.points))):
            self._study.enqueue_trial(make_params(self._settings, points.get(suggestion, {})))

    def _suggest_again(self, previous: Mapping[int, TrialRecord]) -> None:
        """Repeat a suggestion of an earlier attempt: learn from the trials that have ended, and
        queue the others."""
        unfinished = {}
        for number, values in self._make_next_trials():
            trial = previous.get(number)
            if trial is None:
                if number < count_trials(self._settings):
                    unfinished[number] = values
            elif trial.has_ended:
                has_result = trial.status != "failed" and trial.compared_reports
                last = trial.compared_reports[-1] if has_result else None
                self.record_end(number, last, self._measure_excesses(trial, previous))
            else:
                unfinished[number] = dict(trial.values)
        self._enqueue(unfinished)

    def _measure_excesses(
        self, trial: TrialRecord, previous: Mapping[int, TrialRecord]
    ) -> list[float]:
        if not self._constraints:
            return []
        leader = previous.get(trial_number(trial.leader)) if trial.leader else None
        return self._constraints.measure(make_measured_cells(trial, leader))

    def _make_next_trials(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the number and the values of each trial of Optuna's next suggestion."""
        suggestion = self._study.ask()
        first_number = len(self._suggestions) * self._size
        self._suggestions.append(suggestion)

        fan_out = make_fan_out_points(self._settings)
        suggested = fill_point(
            self._settings, lambda name, domain: suggest(domain, name, suggestion), fan_out[0]
        )
        trials = []
        for point in fan_out:
            values = {**suggested, **copy.deepcopy(point)}
            trials.extend(repeat(self._settings, values, self._seed))
        return enumerate(trials, first_number)

    def suggest(self) -> TrialConfig | None:
        """Return the next trial, from a new suggestion if the queue is empty."""
        if not self._queue:
            count = count_trials(self._settings)
            next_trials = self._make_next_trials()
            self._enqueue({number: values for number, values in next_trials if number < count})
        return super().suggest()

    @property
    def is_finished(self) -> bool:
        n_suggested = len(self._suggestions) * self._size
        return not self._queue and n_suggested >= count_trials(self._settings)

    def record_end(
        self, number: int, last: Mapping[str, Any] | None, excesses: Sequence[float] = ()
    ) -> None:
        suggestion = number // self._size
        results = self._results[suggestion]
        results[number] = EndedTrial(last, excesses) if last else None
        if len(results) < self._size:
            return

        from optuna.trial import TrialState

        trial = self._suggestions[suggestion]
        best = find_best_outcome(self._settings, results)
        if best is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            for column, excess in zip(self._settings.constraints, best.excesses, strict=True):
                trial.set_constraint(column, excess)
            self._study.tell(trial, best.scores)
        del self._results[suggestion]


def _make_study(settings: SweepSettings, search: OptunaSearch, n_previous: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # The user has chosen the sampler.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Each attempt of the sweep needs a different seed, because Optuna would repeat its first
        # suggestions.
        sampler = search.make_sampler(settings.seed + n_previous)
    return optuna.create_study(
        directions=["maximize" if mode == "max" else "minimize" for _, mode in settings.objectives],
        sampler=sampler,
    )
