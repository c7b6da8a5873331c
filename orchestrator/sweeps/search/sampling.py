"""Drawing from the space of a sweep: at random, for Optuna, and by mutation. Needs no Ray."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.config.checks.space import (
    count_trials,
    fan_out_points,
    grid_points,
    in_order,
    is_drawn,
    mutated_paths,
)
from orchestrator.config.sections.domain import Domain
from orchestrator.config.sections.sweep import PBT, Sweep

if TYPE_CHECKING:
    import optuna


def random_points(sweep: Sweep) -> list[dict[str, Any]]:
    """The configurations of a grid or random search, before they are repeated: the same seed gives the same."""
    random, fan_out = np.random.RandomState(sweep.seed), fan_out_points(sweep)
    count = math.ceil(count_trials(sweep) / sweep.repeats / len(fan_out))
    given = ({**point, **first} for first in sweep.points for point in grid_points(sweep))
    known = itertools.islice(itertools.chain(given, itertools.cycle(grid_points(sweep))), count)
    points = [_filled(sweep, lambda name, domain: draw(domain, random), {**point, **fan_out[0]}) for point in known]
    return [{**point, **copy.deepcopy(values)} for point in points for values in fan_out]


def drawn_trials(sweep: Sweep, seed: int) -> list[dict[str, Any]]:
    """The values of each trial of a grid or random search; `seed` is that of first repeats."""
    return [values for point in random_points(sweep) for values in repeated(sweep, point, seed)]


def repeated(sweep: Sweep, values: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """The values of each trial of one configuration: as they are, or with `repeats` seeds, the first of which is
    `seed`."""
    if sweep.repeats == 1:
        return [dict(values)]
    return [{**values, "seed": seed + repeat} for repeat in range(sweep.repeats)]


def suggested(sweep: Sweep, trial: optuna.Trial) -> list[dict[str, Any]]:
    """Return what Optuna suggests, combined with each `fan_out` value. It suggests only what is drawn."""
    fan_out = fan_out_points(sweep)
    values = _filled(sweep, lambda name, domain: suggest(domain, name, trial), fan_out[0])
    return [{**values, **copy.deepcopy(point)} for point in fan_out]


def as_optuna(sweep: Sweep, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point as Optuna knows it: of a list the place, as in `suggest`. What the space does not hold (any more) is left
    out."""
    known = {
        name: value
        for name, value in point.items()
        if name in sweep.space and sweep.space[name].kind != "fan_out" and value in sweep.space[name]
    }
    return {
        name: sweep.space[name].values.index(value) if sweep.space[name].is_list else value
        for name, value in known.items()
    }


def _filled(sweep: Sweep, drawn: Callable[[str, Domain], Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one trial: what is given, and for the rest what is drawn, path by path."""
    values: dict[str, Any] = {}
    for name in in_order(sweep.space):
        if is_drawn(name, sweep.space, values):
            values[name] = copy.deepcopy(given[name] if name in given else drawn(name, sweep.space[name]))
    return values


def draw(domain: Domain, random: np.random.RandomState) -> Any:
    """One value of a domain; quantized and clipped, where the domain is, to the nearest that it holds."""
    if domain.is_list:
        return domain.values[random.randint(len(domain.values))]
    if domain.kind == "normal":
        return domain.nearest(random.normal(domain.values[0], domain.values[1]))
    low, high = domain.ends
    if domain.kind == "randint":
        return int(random.randint(low, high + 1))
    if domain.kind == "lograndint":
        # Each whole number has the share of the logarithmic scale up to the next one.
        return min(math.floor(math.exp(random.uniform(math.log(low), math.log(high + 1)))), high)
    if domain.is_logarithmic:
        return domain.nearest(math.exp(random.uniform(math.log(low), math.log(high))))
    return domain.nearest(random.uniform(low, high))


def suggest(domain: Domain, name: str, trial: optuna.Trial) -> Any:
    """What Optuna suggests for one path; of a list it is asked for the place, as a value may be a mapping."""
    if domain.is_list:
        return domain.values[trial.suggest_categorical(name, range(len(domain.values)))]
    low, high = domain.ends
    if domain.kind in ("randint", "lograndint"):
        return trial.suggest_int(name, low, high, log=domain.is_logarithmic)
    return domain.nearest(trial.suggest_float(name, low, high, log=domain.is_logarithmic))


# Mutation


def mutated(sweep: Sweep, values: Mapping[str, Any], random: np.random.RandomState) -> dict[str, Any]:
    """What PBT makes of the values of the trial that is copied: those that change in flight are drawn anew or
    perturbed."""
    scheduler = sweep.scheduler
    assert isinstance(scheduler, PBT)
    changed = copy.deepcopy(dict(values))
    for name in mutated_paths(sweep):
        if name in changed:
            domain = sweep.space[name]
            resampled = random.uniform() < scheduler.resample_probability
            changed[name] = draw(domain, random) if resampled else perturbed(domain, changed[name], scheduler, random)
    return changed


def perturbed(domain: Domain, value: Any, scheduler: PBT, random: np.random.RandomState) -> Any:
    """A number times one of the factors, within its domain; of a list, the value before or after."""
    if domain.is_list:
        place = domain.values.index(value) + random.choice([-1, 1])
        return domain.values[min(max(place, 0), len(domain.values) - 1)]
    return domain.nearest(value * random.choice(scheduler.perturbation_factors))


def clipped(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those that change in flight put into their domains."""
    return {
        name: sweep.space[name].nearest(value) if name in mutated_paths(sweep) else value
        for name, value in values.items()
    }


def bounds(sweep: Sweep) -> dict[str, list[float]]:
    """Both ends of each range that changes in flight."""
    return {name: list(sweep.space[name].ends) for name in mutated_paths(sweep)}
