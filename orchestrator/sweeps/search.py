"""Where the next trial's values come from, for Ray Tune and for a sweep in this process. Driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher

from orchestrator.config.space import count_trials
from orchestrator.config.sweep import HyperBand, Population, Sweep
from orchestrator.sweeps.space import enqueued, random_points, suggested

TRIAL = "trial"
"""Under which key of Tune's config a trial's number and values stand."""


def trial_config(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A trial as it stands in Tune's config."""
    return {TRIAL: {"number": number, "values": dict(values)}}


def param_space(settings: Sweep) -> dict[str, Any]:
    """Every trial's config where all are known before the first; nothing where Optuna suggests them one by one."""
    if settings.search == "optuna":
        return {}
    points = [trial_config(number, values)[TRIAL] for number, values in enumerate(random_points(settings))]
    return {TRIAL: tune.grid_search(points)}


def search_algorithm(settings: Sweep, at_once: int) -> Searcher | SearchAlgorithm:
    """Tune's side of the search; `at_once` trials at a time, but for schedulers whose trials wait for each other."""
    if settings.search == "optuna":
        return ConcurrencyLimiter(optuna_search(settings), max_concurrent=at_once)
    waiting = isinstance(settings.scheduler, Population | HyperBand)
    return BasicVariantGenerator(max_concurrent=0 if waiting else at_once)


@dataclass(frozen=True)
class _Suggest:
    """The space as a function for Optuna; a class, as Tune keeps the search in a file."""

    settings: Sweep

    def __call__(self, trial: Any) -> dict[str, Any]:
        return trial_config(trial.number, suggested(self.settings, trial))


def optuna_search(settings: Sweep) -> Any:
    """Ray Tune's OptunaSearch over the space, written as a function so that a path may depend on another.

    TPE, seeded.
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
        points_to_evaluate=enqueued(settings),
        sampler=optuna.samplers.TPESampler(seed=settings.seed),
    )


class Draws:
    """The trials of a sweep one after the other, in this process: each search learns what the trials before reached."""

    def __init__(self, settings: Sweep) -> None:
        self._settings = settings
        self._optuna = optuna_search(settings) if settings.search == "optuna" else None

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._optuna is None:
            yield from enumerate(random_points(self._settings))
            return
        for number in range(count_trials(self._settings)):
            yield number, self._optuna.suggest(str(number))[TRIAL]["values"]

    def over(self, number: int, last: Mapping[str, Any] | None) -> None:
        """Tells how a trial ended: its last report, or None where it failed."""
        if self._optuna is not None:
            self._optuna.on_trial_complete(str(number), dict(last) if last else None, error=last is None)
