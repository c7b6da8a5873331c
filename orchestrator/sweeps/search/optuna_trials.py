"""`search: optuna`: trials that a sampler of Optuna suggests. Used in the driver."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import Domain, Sweep
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.experiment.sweep.space import count_trainings, count_trials, make_fan_out_points
from orchestrator.sweeps.search.drawing import add_seeds, fill_point
from orchestrator.sweeps.search.search import Search, TrialConfig
from orchestrator.tables.configurations import compute_score
from orchestrator.tables.trial_index import TrialRecord

if TYPE_CHECKING:
    import optuna


class OptunaTrials(Search):
    """Optuna's suggestions, which also learn from earlier attempts of the sweep; unfinished
    trials come first.

    Each suggestion has a trial for each seed and each `fan_out` value. Once all of these have
    ended, Optuna learns the aggregate of the best configuration, without failed trials. Trials keep
    their numbers, so a resumed sweep repeats a suggestion whose trials never started.
    """

    def __init__(
        self,
        settings: Sweep,
        search: OptunaSearch,
        seed: int,
        previous: Mapping[int, TrialRecord],
        shared: SharedPaths,
    ) -> None:
        super().__init__(settings, shared)
        self._seed = seed
        self._size = len(make_fan_out_points(settings)) * settings.repeats
        """Number of trials per suggestion."""
        self._study = _make_study(settings, search, len(previous))
        self._suggestions: list[optuna.Trial] = []
        self._results: defaultdict[int, dict[int, Mapping[str, Any] | None]] = defaultdict(dict)
        """Last report of each ended trial, by suggestion."""

        n_suggested = max(previous, default=-1) // self._size + 1
        points = dict(enumerate(settings.points))
        for number, trial in previous.items():
            points[number // self._size] = dict(trial.values)
        for suggestion in range(max(n_suggested, len(settings.points))):
            self._study.enqueue_trial(to_optuna(settings, points.get(suggestion, {})))
        for _ in range(n_suggested):
            self._suggest_again(previous)
        self.count = len(self._queue) + count_trainings(settings, n_suggested * self._size)

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
                reports = trial.compared_reports if trial.status != "failed" else ()
                self.record_end(number, reports[-1] if reports else None)
            else:
                unfinished[number] = dict(trial.values)
        self._enqueue(unfinished)

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
            trials.extend(add_seeds(self._settings, values, self._seed))
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

    def record_end(self, number: int, last: Mapping[str, Any] | None) -> None:
        suggestion = number // self._size
        results = self._results[suggestion]
        results[number] = last
        if len(results) < self._size:
            return

        from optuna.trial import TrialState

        trial = self._suggestions[suggestion]
        best = self._find_best(results)
        if best is None or any(map(math.isnan, best)):
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, best)
        del self._results[suggestion]

    def _find_best(self, results: Mapping[int, Mapping[str, Any] | None]) -> list[float] | None:
        """Return the metrics of a suggestion's best configuration, aggregated over seeds; None if
        all trials failed."""
        metric, mode = self._settings.objectives[0]
        sign = 1 if mode == "max" else -1
        configurations: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for number, last in results.items():
            if last and metric in last:
                configurations[number // self._settings.repeats].append(last)

        def sort_key(scores: list[float]) -> float:
            return -math.inf if math.isnan(scores[0]) else sign * scores[0]

        return max(map(self._aggregate, configurations.values()), key=sort_key, default=None)

    def _aggregate(self, reports: list[Mapping[str, Any]]) -> list[float]:
        """Return the score of each of the sweep's metrics over the repeats of a configuration."""
        scores = []
        for metric, mode in self._settings.objectives:
            values = [report[metric] for report in reports]
            scores.append(compute_score(values, mode, self._settings.aggregate))
        return scores


def _make_study(settings: Sweep, search: OptunaSearch, n_previous: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        directions=["maximize" if mode == "max" else "minimize" for _, mode in settings.objectives],
        # Each attempt of the sweep needs a different seed, because Optuna would repeat its first
        # suggestions.
        sampler=search.make_sampler(settings.seed + n_previous),
    )


def to_optuna(sweep: Sweep, point: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a point to Optuna's form, as in `suggest`, without values that the space no longer
    contains."""
    converted = {}
    for name, value in point.items():
        domain = sweep.space.get(name)
        if domain is None or domain.kind == "fan_out" or value not in domain:
            continue
        converted[name] = domain.values.index(value) if domain.is_list else value
    return converted


def suggest(domain: Domain, name: str, trial: optuna.Trial) -> Any:
    """Return Optuna's suggestion for a path; for a list Optuna chooses an index, because a value
    may be a mapping."""
    if domain.is_list:
        return domain.values[trial.suggest_categorical(name, range(len(domain.values)))]
    low, high = domain.ends
    if domain.kind in ("randint", "lograndint"):
        return trial.suggest_int(name, low, high, log=domain.is_logarithmic)
    return domain.nearest(trial.suggest_float(name, low, high, log=domain.is_logarithmic))
