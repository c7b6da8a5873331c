"""Where the next trial's values come from, for Ray Tune and for a sweep in this process. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher

from orchestrator.config.sweep import HyperBand, Population, Sweep
from orchestrator.sweeps.results.previous_trials import Past, count_left, still_to_run
from orchestrator.sweeps.search.sampling import as_optuna, random_points, suggested

TRIAL = "trial"
"""Under which key of Tune's config a trial's number and values stand."""


def trial_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A trial as it stands in Tune's config."""
    return {TRIAL: {"number": number, "values": dict(values)}}


def param_space(settings: Sweep, past: Mapping[int, Past]) -> dict[str, Any]:
    """Every trial's config where all are known before the first; nothing where Optuna suggests them one by one."""
    if settings.search == "optuna":
        return {}
    points = [trial_config(number, values)[TRIAL] for number, values in still_to_run(random_points(settings), past)]
    return {TRIAL: tune.grid_search(points)}


def search_algorithm(settings: Sweep, at_once: int, past: Mapping[int, Past]) -> Searcher | SearchAlgorithm:
    """Tune's side of the search; `at_once` trials at a time, but for schedulers whose trials wait for each other."""
    if settings.search == "optuna":
        return ConcurrencyLimiter(OptunaTrials(settings, past), max_concurrent=at_once)
    waiting = isinstance(settings.scheduler, Population | HyperBand)
    return BasicVariantGenerator(max_concurrent=0 if waiting else at_once)


@dataclass(frozen=True)
class _Suggest:
    """The space as a function for Optuna; a class, as Tune keeps the search in a file."""

    settings: Sweep

    def __call__(self, trial: Any) -> dict[str, Any]:
        return trial_config(trial.number, suggested(self.settings, trial))


class OptunaTrials(Searcher):
    """Optuna, told what an earlier life of the sweep has found. Trials that are not over are handed out again first.

    Optuna counts its trials itself, and a trial keeps its number: a number that was suggested but never begun is
    suggested anew.
    """

    def __init__(self, settings: Sweep, past: Mapping[int, Past]) -> None:
        metrics, modes = (list(column) for column in zip(*settings.objectives, strict=True))
        super().__init__(metric=metrics if len(metrics) > 1 else metrics[0], mode=modes if len(modes) > 1 else modes[0])
        self._optuna = _optuna_search(settings, past)
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._names: dict[str, str] = {}
        for number in range(max(past, default=-1) + 1):
            self._take_up(number, past.get(number))

    def _take_up(self, number: int, trial: Past | None) -> None:
        name = f"past-{number}"
        suggested = self._optuna.suggest(name)
        if trial is None or not trial.over:
            self._waiting.append((name, trial_config(number, trial.values) if trial else suggested))
            return
        last = dict(trial.reports[-1]) if trial.reports and not trial.failed else None
        self._optuna.on_trial_complete(name, last, error=trial.failed)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next trial's config."""
        if not self._waiting:
            config: dict[str, Any] | None = self._optuna.suggest(trial_id)
            return config
        self._names[trial_id], config = self._waiting.pop(0)
        return config

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial has reported."""
        self._optuna.on_trial_result(self._names.get(trial_id, trial_id), result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over."""
        self._optuna.on_trial_complete(self._names.get(trial_id, trial_id), result, error)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: what the trials have left is enough to go on."""

    def restore(self, checkpoint_path: str) -> None:
        """Never asked for."""


def _optuna_search(settings: Sweep, past: Mapping[int, Past]) -> Any:
    """Ray Tune's OptunaSearch over the space, written as a function so that a path may depend on another.

    TPE, seeded; anew for each life of the sweep, as it would repeat its first draws otherwise.
    """
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    metrics, modes = zip(*settings.objectives, strict=True)
    several = len(metrics) > 1
    return OptunaSearch(
        _Suggest(settings),
        metric=list(metrics) if several else metrics[0],
        mode=list(modes) if several else modes[0],
        points_to_evaluate=_first_points(settings, past),
        sampler=optuna.samplers.TPESampler(seed=settings.seed + len(past)),
    )


def _first_points(settings: Sweep, past: Mapping[int, Past]) -> list[dict[str, Any]]:
    """What Optuna is told to suggest first, by number: what was begun, and the points that were not; {} is its own choice."""
    begun = max(past, default=-1) + 1
    given = dict(enumerate(settings.points))
    values = [past[number].values if number in past else given.get(number, {}) for number in range(max(begun, len(given)))]
    return [as_optuna(settings, point) for point in values]


class Draws:
    """The trials of a sweep one after the other, in this process: each search learns what the trials before reached."""

    def __init__(self, settings: Sweep, past: Mapping[int, Past] | None = None) -> None:
        self._settings, self._past = settings, past or {}
        self._optuna = OptunaTrials(settings, self._past) if settings.search == "optuna" else None
        self._drawn: dict[int, str] = {}

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._optuna is None:
            yield from still_to_run(random_points(self._settings), self._past)
            return
        for drawn in range(count_left(self._settings, self._past)):
            config = self._optuna.suggest(str(drawn))
            assert config is not None
            self._drawn[config[TRIAL]["number"]] = str(drawn)
            yield config[TRIAL]["number"], config[TRIAL]["values"]

    def over(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Tells how a trial ended: its last report, or None where it failed."""
        if self._optuna is not None:
            self._optuna.on_trial_complete(self._drawn[number], dict(last) if last else None, error=last is None)
