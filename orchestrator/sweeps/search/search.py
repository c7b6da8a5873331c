"""Where the next trial's values come from, for Ray Tune and for a sweep in one process. Driver."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from ray.tune.search import Searcher

from orchestrator.config.riding import Riding
from orchestrator.config.space import count_trials
from orchestrator.config.sweep import Sweep
from orchestrator.sweeps.results.previous_trials import PreviousTrial, remaining_trials
from orchestrator.sweeps.search.sampling import as_optuna, drawn_trials, repeated, suggested

TRIAL = "trial"
"""Under which key of Tune's config a trial's number and values stand."""


NOBODY = Riding()


def trial_config(number: int, values: Mapping[str, Any], riders: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A trial as it stands in Tune's config, with those that share its training."""
    return {TRIAL: {"number": number, "values": dict(values), "riders": [*riders]}}


def make_search(settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial], riding: Riding = NOBODY) -> Search:
    """The search that the settings name, which knows what an earlier life of the sweep has left; `seed` is that of first repeats."""
    if settings.search == "optuna":
        return OptunaTrials(settings, seed, previous)
    return DrawnTrials(settings, seed, previous, riding)


class Search(Searcher):
    """Hands out the trials that are left, one by one; those that were begun have their own values."""

    def __init__(self, settings: Sweep, previous: Mapping[int, PreviousTrial]) -> None:
        metrics, modes = (list(column) for column in zip(*settings.objectives, strict=True))
        super().__init__(metric=metrics if len(metrics) > 1 else metrics[0], mode=modes if len(modes) > 1 else modes[0])
        self.count = len(remaining_trials(settings, previous))
        """How many trainings are left: as many as trials, where none share one."""
        self._waiting: deque[dict[str, Any]] = deque()

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """The next trial's config."""
        return self._waiting.popleft()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: what the trials have left is enough to go on."""

    def restore(self, checkpoint_path: str) -> None:
        """Never asked for."""


class DrawnTrials(Search):
    """The trials of a grid or random search, all of them drawn before the first begins; those that ride are handed out together."""

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial], riding: Riding) -> None:
        super().__init__(settings, previous)
        drawn = drawn_trials(settings, seed)
        left = {number: previous[number].values if number in previous else drawn[number] for number in remaining_trials(settings, previous)}
        for carrier, *riders in riding.together([*left.items()]):
            self._waiting.append(trial_config(carrier, left[carrier], [{"number": number, "values": left[number]} for number in riders]))
        self.count = len(self._waiting)


class OptunaTrials(Search):
    """Optuna, which hears what an earlier life of the sweep has found. Trials that are not over are handed out again first.

    Optuna counts its suggestions, and a trial keeps its number: what was suggested but never begun is suggested anew. Of
    trials that repeat one suggestion Optuna hears the mean, when the last of them is over, without those that failed.
    """

    def __init__(self, settings: Sweep, seed: int, previous: Mapping[int, PreviousTrial]) -> None:
        super().__init__(settings, previous)
        self._settings, self._seed = settings, seed
        self._optuna = self._optuna_search(previous)
        self._suggested = 0
        self._numbers: dict[str, int] = {}
        self._reported: dict[str, Mapping[str, Any]] = {}
        self._reached: defaultdict[int, list[Mapping[str, Any] | None]] = defaultdict(list)
        while self._suggested < _begun(settings, previous):
            self._hand_out_again(previous)

    def _optuna_search(self, previous: Mapping[int, PreviousTrial]) -> Any:
        """Ray Tune's OptunaSearch over the space, written as a function so that a path may depend on another.

        TPE, seeded; anew for each life of the sweep, as it would repeat its first draws otherwise.
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
        for number, values in self._next():
            trial = previous.get(number)
            if trial and trial.over:
                self._end(number, trial.reports[-1] if trial.reports and not trial.failed else None)
            elif trial or number < count_trials(self._settings):
                self._waiting.append(trial_config(number, trial.values if trial else values))

    def _next(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and values of each trial of Optuna's next suggestion."""
        suggestion, self._suggested = self._suggested, self._suggested + 1
        values = self._optuna.suggest(str(suggestion))["values"]
        return enumerate(repeated(self._settings, values, self._seed), suggestion * self._settings.repeats)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """The next trial's config."""
        if not self._waiting:
            self._waiting.extend(trial_config(number, values) for number, values in self._next())
        config = super().suggest(trial_id)
        self._numbers[trial_id] = config[TRIAL]["number"]
        return config

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial has reported."""
        self._reported[trial_id] = result

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over. Tune has no result for one that is ended while it is paused: its last report counts."""
        reported = self._reported.pop(trial_id, None)
        self._end(self._numbers.pop(trial_id), None if error else result or reported)

    def _end(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Keeps what a trial has reached, and reports it to Optuna when it is the last one of its suggestion."""
        suggestion, metrics = number // self._settings.repeats, self._settings.metrics
        self._reached[suggestion].append(last)
        if len(self._reached[suggestion]) < self._settings.repeats:
            return
        judged = [one for one in self._reached.pop(suggestion) if one and metrics[0] in one]
        mean = {metric: fmean(one[metric] for one in judged) for metric in metrics} if judged else None
        self._optuna.on_trial_complete(str(suggestion), mean, error=mean is None)


def _suggest(settings: Sweep, trial: Any) -> dict[str, Any]:
    """The space as a function for Optuna."""
    return {"values": suggested(settings, trial)}


def _begun(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> int:
    """How many suggestions an earlier life of the sweep has made."""
    return max(previous, default=-1) // settings.repeats + 1


def _first_points(settings: Sweep, previous: Mapping[int, PreviousTrial]) -> list[dict[str, Any]]:
    """What Optuna is to suggest first: what was begun, and the points that were not; {} is its own choice."""
    given = dict(enumerate(settings.points))
    given |= {number // settings.repeats: trial.values for number, trial in previous.items()}
    count = max(_begun(settings, previous), len(settings.points))
    return [as_optuna(settings, given.get(suggestion, {})) for suggestion in range(count)]
