"""Searches, which choose the values of the next trial: drawn, suggested by Optuna, or mutated. Used
in the driver."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import Domain, Sweep
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.experiment.sweep.space import (
    combine_points_with_grid,
    count_trainings,
    count_trials,
    is_drawn,
    list_mutated_paths,
    make_fan_out_points,
    make_grid_points,
    sort_outer_first,
)
from orchestrator.tables.configurations import compute_score
from orchestrator.tables.trial_index import TrialRecord

if TYPE_CHECKING:
    import optuna

TrialConfig = dict[str, Any]
"""`number` and `values` of a trial, and those of its `followers`, which share its training run."""


def make_trial_config(
    number: int, values: Mapping[str, Any], followers: Sequence[Mapping[str, Any]] = ()
) -> TrialConfig:
    return {"number": number, "values": dict(values), "followers": [*followers]}


def list_remaining_trials(settings: Sweep, previous: Mapping[int, TrialRecord]) -> list[int]:
    """Return the numbers of the trials that have not ended."""
    numbers = sorted({*range(count_trials(settings)), *previous})
    return [
        number for number in numbers if number not in previous or not previous[number].has_ended
    ]


class Search:
    """Base class of searches, which suggest the remaining trials. Trials of earlier attempts keep
    their values."""

    def __init__(self, settings: Sweep, shared: SharedPaths = SharedPaths()) -> None:  # noqa: B008  # it is frozen
        self._settings, self._shared = settings, shared
        self._queue: deque[TrialConfig] = deque()
        self.count = 0
        """Maximum number of remaining training runs."""

    def suggest(self) -> TrialConfig | None:
        """Return the next trial; None while none can start."""
        return self._queue.popleft() if self._queue else None

    @property
    def is_finished(self) -> bool:
        """True once no other trial will start."""
        return not self._queue

    def record_report(self, number: int, report: Mapping[str, Any]) -> str | None:
        """Learn from a report of a trial; return the reason to stop the trial, or None."""
        return None

    def record_end(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Learn from the last report of a trial that has ended; None if the trial failed."""

    def record_pause(self, number: int) -> None:
        """Do not wait for the end of a trial, which was interrupted."""

    def _enqueue(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Queue trials; those that share a training run together."""
        for leader, *followers in self._shared.group_trials([*trials.items()]):
            others = [{"number": number, "values": trials[number]} for number in followers]
            self._queue.append(make_trial_config(leader, trials[leader], others))


class DrawnTrials(Search):
    """Trials of a grid or random search, all drawn before the first one starts."""

    def __init__(
        self, settings: Sweep, seed: int, previous: Mapping[int, TrialRecord], shared: SharedPaths
    ) -> None:
        super().__init__(settings, shared)
        drawn = draw_trials(settings, seed)
        self._enqueue(
            {
                number: previous[number].values if number in previous else drawn[number]
                for number in list_remaining_trials(settings, previous)
            }
        )
        self.count = len(self._queue)


class OptunaTrials(Search):
    """Optuna's suggestions (TPE), which also learn from earlier attempts of the sweep; unfinished
    trials come first.

    Each suggestion has a trial for each seed and each `fan_out` value. Once all of these have
    ended, Optuna learns the aggregate of the best configuration, without failed trials. Trials keep
    their numbers, so a resumed sweep repeats a suggestion whose trials never started.
    """

    def __init__(
        self, settings: Sweep, seed: int, previous: Mapping[int, TrialRecord], shared: SharedPaths
    ) -> None:
        import optuna

        super().__init__(settings, shared)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._seed = seed
        self._size = len(make_fan_out_points(settings)) * settings.repeats
        """Number of trials per suggestion."""
        # Each attempt of the sweep needs a different seed, because Optuna would repeat its first
        # suggestions.
        self._study = optuna.create_study(
            directions=[
                "maximize" if mode == "max" else "minimize" for _, mode in settings.objectives
            ],
            sampler=optuna.samplers.TPESampler(seed=settings.seed + len(previous)),
        )
        n_suggested = max(previous, default=-1) // self._size + 1
        points = dict(enumerate(settings.points))
        points |= {number // self._size: dict(trial.values) for number, trial in previous.items()}
        for suggestion in range(max(n_suggested, len(settings.points))):
            self._study.enqueue_trial(to_optuna(settings, points.get(suggestion, {})))
        self._suggestions: list[optuna.Trial] = []
        self._results: defaultdict[int, dict[int, Mapping[str, Any] | None]] = defaultdict(dict)
        """Last report of each ended trial, by suggestion."""
        for _ in range(n_suggested):
            self._suggest_again(previous)
        self.count = len(self._queue) + count_trainings(settings, n_suggested * self._size)

    def _suggest_again(self, previous: Mapping[int, TrialRecord]) -> None:
        unfinished = {}
        for number, values in self._make_next_trials():
            trial = previous.get(number)
            if trial and trial.has_ended:
                reports = trial.compared_reports if trial.status != "failed" else ()
                self.record_end(number, reports[-1] if reports else None)
            elif trial or number < count_trials(self._settings):
                unfinished[number] = trial.values if trial else values
        self._enqueue(unfinished)

    def _make_next_trials(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the number and the values of each trial of Optuna's next suggestion."""
        suggestion = self._study.ask()
        self._suggestions.append(suggestion)
        fan_out = make_fan_out_points(self._settings)
        drawn = _fill(
            self._settings, lambda name, domain: suggest(domain, name, suggestion), fan_out[0]
        )
        trials = [
            values
            for point in fan_out
            for values in add_seeds(self._settings, {**drawn, **copy.deepcopy(point)}, self._seed)
        ]
        return enumerate(trials, (len(self._suggestions) - 1) * self._size)

    def suggest(self) -> TrialConfig | None:
        """Return the next trial, from a new suggestion if the queue is empty."""
        if not self._queue:
            count = count_trials(self._settings)
            self._enqueue(
                {number: values for number, values in self._make_next_trials() if number < count}
            )
        return super().suggest()

    @property
    def is_finished(self) -> bool:
        return not self._queue and len(self._suggestions) * self._size >= count_trials(
            self._settings
        )

    def record_end(self, number: int, last: Mapping[str, Any] | None) -> None:
        suggestion = number // self._size
        results = self._results[suggestion]
        results[number] = last
        if len(results) < self._size:
            return
        from optuna.trial import TrialState

        best = self._find_best(results)
        trial = self._suggestions[suggestion]
        if best is None or any(map(math.isnan, best)):
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, best)
        del self._results[suggestion]

    def _find_best(self, results: Mapping[int, Mapping[str, Any] | None]) -> list[float] | None:
        """Return the metrics of a suggestion's best configuration, aggregated over seeds; None if
        all trials failed."""
        configurations: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        objectives, repeats, aggregate = (
            self._settings.objectives,
            self._settings.repeats,
            self._settings.aggregate,
        )
        metric, mode = objectives[0]
        for number, last in results.items():
            if last and metric in last:
                configurations[number // repeats].append(last)
        scores = [
            [
                compute_score([trial[name] for trial in trials], mode, aggregate)
                for name, mode in objectives
            ]
            for trials in configurations.values()
        ]
        sign = 1 if mode == "max" else -1
        return max(
            scores,
            key=lambda score: -math.inf if math.isnan(score[0]) else sign * score[0],
            default=None,
        )


# Samples from the space


def draw_points(sweep: Sweep) -> list[dict[str, Any]]:
    """Draw the configurations of a grid or random search, without repeats. The same seed gives the
    same ones."""
    random, fan_out = np.random.RandomState(sweep.seed), make_fan_out_points(sweep)
    count = math.ceil(count_trials(sweep) / sweep.repeats / len(fan_out))
    fixed = itertools.islice(_combine_points_and_grid(sweep), count)
    points = [
        _fill(sweep, lambda name, domain: draw(domain, random), {**point, **fan_out[0]})
        for point in fixed
    ]
    return [{**point, **copy.deepcopy(values)} for point in points for values in fan_out]


def _combine_points_and_grid(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield each of `points` with the grid values that it leaves open, then the rest of each round
    of the grid."""
    tried = []
    for written, point in combine_points_with_grid(sweep):
        tried.append(point)
        yield {**point, **written}
    for point in itertools.cycle(make_grid_points(sweep)):
        if point in tried:
            tried.remove(point)
        else:
            yield point


def draw_trials(sweep: Sweep, seed: int) -> list[dict[str, Any]]:
    """Draw the values of each trial of a grid or random search. First repeats have the seed
    `seed`."""
    return [values for point in draw_points(sweep) for values in add_seeds(sweep, point, seed)]


def add_seeds(sweep: Sweep, values: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Return the values of each trial of a configuration. Repeats have consecutive seeds, starting
    at `seed`."""
    if sweep.repeats == 1:
        return [dict(values)]
    return [{**values, "seed": seed + repeat} for repeat in range(sweep.repeats)]


def to_optuna(sweep: Sweep, point: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a point to Optuna's form, as in `suggest`, without values that the space no longer
    contains."""
    known = {
        name: value
        for name, value in point.items()
        if name in sweep.space
        and sweep.space[name].kind != "fan_out"
        and value in sweep.space[name]
    }
    return {
        name: sweep.space[name].values.index(value) if sweep.space[name].is_list else value
        for name, value in known.items()
    }


def _fill(
    sweep: Sweep, choose: Callable[[str, Domain], Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a configuration: the fixed ones, and a choice for every other path to
    draw."""
    values: dict[str, Any] = {}
    for name in sort_outer_first(sweep.space):
        if is_drawn(name, sweep.space, values):
            values[name] = copy.deepcopy(
                fixed[name] if name in fixed else choose(name, sweep.space[name])
            )
    return values


def draw(domain: Domain, random: np.random.RandomState) -> Any:
    if domain.is_list:
        return domain.values[random.randint(len(domain.values))]
    if domain.kind == "normal":
        return domain.nearest(random.normal(domain.values[0], domain.values[1]))
    low, high = domain.ends
    if domain.kind == "randint":
        return int(random.randint(low, high + 1))
    if domain.kind == "lograndint":
        # An integer has the share of the logarithmic scale up to the next integer.
        return min(math.floor(math.exp(random.uniform(math.log(low), math.log(high + 1)))), high)
    return from_scale(domain, random.uniform(to_scale(domain, low), to_scale(domain, high)))


def to_scale(domain: Domain, value: float) -> float:
    """Return where a number is on the scale that its domain is uniform on: its logarithm in a
    logarithmic domain."""
    return math.log(value) if domain.is_logarithmic else float(value)


def from_scale(domain: Domain, place: float) -> int | float:
    """Return the nearest value of a domain to a place on its scale."""
    return domain.nearest(math.exp(place) if domain.is_logarithmic else place)


def suggest(domain: Domain, name: str, trial: optuna.Trial) -> Any:
    """Return Optuna's suggestion for a path; for a list Optuna chooses an index, because a value
    may be a mapping."""
    if domain.is_list:
        return domain.values[trial.suggest_categorical(name, range(len(domain.values)))]
    low, high = domain.ends
    if domain.kind in ("randint", "lograndint"):
        return trial.suggest_int(name, low, high, log=domain.is_logarithmic)
    return domain.nearest(trial.suggest_float(name, low, high, log=domain.is_logarithmic))


# Mutation


def mutate(
    sweep: Sweep, values: Mapping[str, Any], random: np.random.RandomState
) -> dict[str, Any]:
    """Return the new values of a trial that exploits one with `values`: each is resampled or
    perturbed, as in PBT."""
    scheduler = sweep.scheduler
    assert isinstance(scheduler, PBT)
    changed = copy.deepcopy(dict(values))
    for name in list_mutated_paths(sweep):
        if name in changed:
            domain = sweep.space[name]
            # An edited domain may not have the value of a resumed trial.
            resamples = (
                random.uniform() < scheduler.resample_probability or changed[name] not in domain
            )
            changed[name] = (
                draw(domain, random)
                if resamples
                else perturb(domain, changed[name], scheduler, random)
            )
    return changed


def perturb(domain: Domain, value: Any, scheduler: PBT, random: np.random.RandomState) -> Any:
    """Multiply a number by one of the factors, within its domain; in a list, choose the previous or
    next value."""
    if domain.is_list:
        index = domain.values.index(value) + random.choice([-1, 1])
        return domain.values[min(max(index, 0), len(domain.values) - 1)]
    return domain.nearest(value * random.choice(scheduler.perturbation_factors))
