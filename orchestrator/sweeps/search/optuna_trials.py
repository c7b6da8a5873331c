"""`search: optuna`: trials that a sampler of Optuna suggests. Used in the driver."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.disk.metadata import COMPLETE
from orchestrator.disk.sweep_folder import open_sweep_folder, trial_number
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import Sweep
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.experiment.sweep.space import count_trainings, count_trials, make_fan_out_points
from orchestrator.sweeps.search.drawing import fill_point, repeat
from orchestrator.sweeps.search.search import Search, TrialConfig
from orchestrator.tables.configurations import compute_score
from orchestrator.tables.constraints import Constraints, make_measured_cells
from orchestrator.tables.trial_index import TrialIndex, TrialRecord

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


class _Result(NamedTuple):
    """Last report of a trial, and by how much the trial is beyond each constraint."""

    report: Mapping[str, Any]
    excesses: Sequence[float]


class _Outcome(NamedTuple):
    """What Optuna learns of a configuration: its scores, and by how much it is beyond each
    constraint."""

    scores: list[float]
    excesses: list[float]

    def is_complete(self) -> bool:
        return not any(map(math.isnan, self.scores)) and not any(map(math.isinf, self.excesses))

    def is_feasible(self) -> bool:
        return all(excess <= 0 for excess in self.excesses)


class OptunaTrials(Search):
    """Optuna's suggestions, which also learn from earlier attempts of the sweep; unfinished
    trials come first.

    Each suggestion has a trial for each repeat and each `fan_out` value. Once all of these have
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
        self._size = len(make_fan_out_points(settings)) * settings.repeat_count
        """Number of trials per suggestion."""
        self._study = _make_study(settings, search, len(previous))
        if search.earlier:
            _learn_from(search.earlier, settings, self._study)
        self._suggestions: list[optuna.Trial] = []
        self._results: defaultdict[int, dict[int, _Result | None]] = defaultdict(dict)
        """Result of each ended trial, by suggestion; None if it failed."""
        self._metric = settings.objectives[0][0]
        self._constraints = Constraints(settings.constraints)

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
                excesses = self._measure_excesses(trial, previous)
                self.record_end(number, reports[-1] if reports else None, excesses)
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
        results[number] = _Result(last, excesses) if last else None
        if len(results) < self._size:
            return

        from optuna.trial import TrialState

        trial = self._suggestions[suggestion]
        best = self._find_best(results)
        if best is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            for column, excess in zip(self._settings.constraints, best.excesses, strict=False):
                trial.set_constraint(column, excess)
            self._study.tell(trial, best.scores)
        del self._results[suggestion]

    def _find_best(self, results: Mapping[int, _Result | None]) -> _Outcome | None:
        """Return the outcome of a suggestion's best configuration; None if all trials failed, or a
        number is missing."""
        configurations: defaultdict[int, list[_Result]] = defaultdict(list)
        for number, result in results.items():
            if result and self._metric in result.report:
                configurations[number // self._settings.repeat_count].append(result)
        outcomes = [self._combine(repeats) for repeats in configurations.values()]
        _, mode = self._settings.objectives[0]
        sign = 1 if mode == "max" else -1
        return max(
            filter(_Outcome.is_complete, outcomes),
            key=lambda outcome: (outcome.is_feasible(), sign * outcome.scores[0]),
            default=None,
        )

    def _combine(self, repeats: Sequence[_Result]) -> _Outcome:
        """Return the score of each of the sweep's metrics over the repeats of a configuration, and
        the largest excess of each constraint."""
        scores = []
        for metric, mode in self._settings.objectives:
            values = [result.report[metric] for result in repeats]
            scores.append(compute_score(values, mode, self._settings.aggregate))
        excesses = zip(*(result.excesses for result in repeats), strict=True)
        return _Outcome(scores, [max(values) for values in excesses])


def _make_study(settings: Sweep, search: OptunaSearch, n_previous: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        directions=["maximize" if mode == "max" else "minimize" for _, mode in settings.objectives],
        # Each attempt of the sweep needs a different seed, because Optuna would repeat its first
        # suggestions.
        sampler=search.make_sampler(settings.seed + n_previous),
    )


def _learn_from(path: str, settings: Sweep, study: optuna.Study) -> None:
    """Add the ended trials of another sweep to a study; raises UsageError if there is none to learn
    from."""
    from optuna.trial import create_trial

    constraints = Constraints(settings.constraints)
    records = TrialIndex(open_sweep_folder(path), settings.objectives).records()
    trials = []
    for record in records.values():
        if isinstance(record, DamagedFile) or record.status not in COMPLETE:
            continue
        params = to_optuna(settings, record.values)
        drawn = record.values.keys() & settings.space.keys()
        is_outside = any(record.values[name] not in settings.space[name] for name in drawn)
        if is_outside or not params or not record.compared_reports:
            continue
        last = record.compared_reports[-1]
        leader = records.get(record.leader or "")
        outcome = _Outcome(
            [last[metric] for metric in settings.metrics],
            constraints.measure(make_measured_cells(record, leader)),
        )
        if not outcome.is_complete():
            continue
        distributions = {}
        for name in params:
            domain = settings.space[name]
            distributions[name] = make_distribution(domain, range(len(domain.values)))
        trial = create_trial(
            params=params,
            distributions=distributions,
            values=outcome.scores,
            constraints=dict(zip(settings.constraints, outcome.excesses, strict=True)) or None,
        )
        trials.append(trial)
    if not trials:
        metrics = ", ".join(settings.metrics)
        raise UsageError(
            f"sweep.search.from: no ended trial of {path} has {metrics} and values inside this space"
        )
    study.add_trials(trials)


def make_distribution(domain: Domain, categories: Sequence[Any]) -> BaseDistribution:
    """Return Optuna's form of a domain; `categories` stand for the values of a list."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if domain.is_list:
        return CategoricalDistribution(categories)
    low, high = domain.ends
    if domain.kind in ("randint", "lograndint"):
        return IntDistribution(low, high, log=domain.is_logarithmic)
    return FloatDistribution(low, high, log=domain.is_logarithmic)


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
