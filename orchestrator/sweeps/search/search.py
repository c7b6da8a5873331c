"""Where the next trial's values come from, for Ray Tune and for a sweep in one process. Driver."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ray.tune.search import Searcher

from orchestrator.config.checks.shared_training import SharedPaths
from orchestrator.config.checks.space import count_trainings, count_trials, fan_out_points
from orchestrator.config.sections.sweep import Sweep
from orchestrator.stats.aggregate.configurations import group_merit
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials
from orchestrator.sweeps.search.sampling import as_optuna, drawn_trials, repeated, suggested

TRIAL = "trial"
"""Under which key of Tune's config a trial's number and values stand."""

REPORTED = "reported"
"""Which of the trials that share a training a result of Tune's is of; of no other trial it is there."""

NOBODY = SharedPaths()


def trial_config(number: int, values: Mapping[str, Any], followers: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A trial as it stands in Tune's config, with those that share its training."""
    return {TRIAL: {"number": number, "values": dict(values), "followers": [*followers]}}


def make_search(
    settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial], shared: SharedPaths = NOBODY
) -> Search:
    """The search that the settings name, which knows what an earlier attempt of the sweep has left; `seed` is that of
    first repeats."""
    if settings.search == "optuna":
        return OptunaTrials(settings, seed, previous, shared)
    return DrawnTrials(settings, seed, previous, shared)


class Search(Searcher):
    """Hands out the trials that are left, one by one; those that were begun have their own values."""

    def __init__(self, settings: Sweep, shared: SharedPaths) -> None:
        metrics, modes = (list(column) for column in zip(*settings.objectives, strict=True))
        super().__init__(metric=metrics if len(metrics) > 1 else metrics[0], mode=modes if len(modes) > 1 else modes[0])
        self._shared_paths = shared
        self._waiting: deque[dict[str, Any]] = deque()
        self.count = 0
        """How many trainings are left: as many as trials, where none share one."""

    def suggest(self, trial_id: str) -> Any:
        """The next trial's config; None where none can begin yet, and Searcher.FINISHED where none is left."""
        return self._waiting.popleft()

    def ended(self, number: int, last: Mapping[str, Any] | None) -> None:
        """A trial is over, with its last report, or None where it failed."""

    def _hand_out(self, trials: Mapping[int, Mapping[str, Any]]) -> None:
        """Has trials, by number, wait for their turn; those that share a training wait together."""
        for leader, *followers in self._shared_paths.together([*trials.items()]):
            self._waiting.append(
                trial_config(
                    leader, trials[leader], [{"number": number, "values": trials[number]} for number in followers]
                )
            )

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing: whoever drives the trials says of each how it ended."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: what the trials have left is enough to go on."""

    def restore(self, checkpoint_path: str) -> None:
        """Never asked for."""


class DrawnTrials(Search):
    """The trials of a grid or random search, all of them drawn before the first begins. Those that share a training
    are handed out together."""

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial], shared: SharedPaths) -> None:
        super().__init__(settings, shared)
        drawn = drawn_trials(settings, seed)
        self._hand_out(
            {
                number: previous[number].values if number in previous else drawn[number]
                for number in remaining_trials(settings, previous)
            }
        )
        self.count = len(self._waiting)


class OptunaTrials(Search):
    """Optuna, which hears what an earlier attempt of the sweep has found. Trials that are not over are handed out again
    first.

    Optuna counts its suggestions, and a trial keeps its number: what was suggested but never begun is suggested anew.
    Of trials that repeat one suggestion Optuna hears the mean, when the last of them is over, without those that
    failed; of those that share its training the best, as all of them are tried with every suggestion.
    """

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial], shared: SharedPaths) -> None:
        super().__init__(settings, shared)
        self._settings, self._seed = settings, seed
        self._optuna = self._optuna_search(previous)
        self._suggested = 0
        self._reached: defaultdict[int, dict[int, Mapping[str, Any] | None]] = defaultdict(dict)
        while self._suggested < _begun(settings, previous):
            self._hand_out_again(previous)
        self.count = len(self._waiting) + count_trainings(settings, self._suggested * _in_a_suggestion(settings))

    def _optuna_search(self, previous: Mapping[int, PreviousTrial]) -> Any:
        """Ray Tune's OptunaSearch over the space, written as a function so that a path may depend on another.

        TPE, seeded; anew for each attempt of the sweep, as it would repeat its first draws otherwise.
        """
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return OptunaSearch(
            partial(_suggest, self._settings),
            metric=self.metric,
            mode=self.mode,
            points_to_evaluate=_first_points(self._settings, previous),
            sampler=optuna.samplers.TPESampler(seed=self._settings.seed + len(previous)),
        )

    def _hand_out_again(self, previous: Mapping[int, PreviousTrial]) -> None:
        left = {}
        for number, values in self._next():
            trial = previous.get(number)
            if trial and trial.over:
                self.ended(number, trial.reports[-1] if trial.reports and not trial.failed else None)
            elif trial or number < count_trials(self._settings):
                left[number] = trial.values if trial else values
        self._hand_out(left)

    def _next(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and values of each trial of Optuna's next suggestion."""
        suggestion, self._suggested = self._suggested, self._suggested + 1
        configurations = self._optuna.suggest(str(suggestion))["configurations"]
        trials = (
            values for configuration in configurations for values in repeated(self._settings, configuration, self._seed)
        )
        return enumerate(trials, suggestion * _in_a_suggestion(self._settings))

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """The next trial's config."""
        if not self._waiting:
            self._hand_out({number: values for number, values in self._next() if number < count_trials(self._settings)})
        config: dict[str, Any] = super().suggest(trial_id)
        return config

    def ended(self, number: int, last: Mapping[str, Any] | None) -> None:
        """A trial is over: what it has reached is kept, and Optuna is told when it is the last one of its
        suggestion."""
        suggestion = number // _in_a_suggestion(self._settings)
        reached = self._reached[suggestion]
        reached[number] = last
        if len(reached) < _in_a_suggestion(self._settings):
            return
        del self._reached[suggestion]
        best = self._best(reached)
        self._optuna.on_trial_complete(str(suggestion), best, error=best is None)

    def _best(self, reached: Mapping[int, Mapping[str, Any] | None]) -> dict[str, float] | None:
        """Of the configurations of a suggestion the best, each by the mean over its seeds or its bound; None where no
        trial has reached anything."""
        judged: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        metric, mode = self._settings.objectives[0]
        for number, last in reached.items():
            if last and metric in last:
                judged[number // self._settings.repeats].append(last)
        merits = [
            {
                name: group_merit([one[name] for one in trials], mode, self._settings.aggregate)
                for name, mode in self._settings.objectives
            }
            for trials in judged.values()
        ]
        sign = 1 if mode == "max" else -1
        return max(
            merits, key=lambda merit: -math.inf if math.isnan(merit[metric]) else sign * merit[metric], default=None
        )


def _suggest(settings: Sweep, trial: Any) -> dict[str, Any]:
    """The space as a function for Optuna."""
    return {"configurations": suggested(settings, trial)}


def _in_a_suggestion(settings: Sweep) -> int:
    """How many trials there are of each suggestion."""
    return len(fan_out_points(settings)) * settings.repeats


def _begun(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> int:
    """How many suggestions an earlier attempt of the sweep has made."""
    return max(previous, default=-1) // _in_a_suggestion(settings) + 1


def _first_points(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> list[dict[str, Any]]:
    """What Optuna is to suggest first: what was begun, and the points that were not; {} is its own choice."""
    given = dict(enumerate(settings.points))
    given |= {number // _in_a_suggestion(settings): trial.values for number, trial in previous.items()}
    count = max(_begun(settings, previous), len(settings.points))
    return [as_optuna(settings, given.get(suggestion, {})) for suggestion in range(count)]
