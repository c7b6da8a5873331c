"""Samples from the search space of a sweep: random draws, Optuna's suggestions, and mutations. Does not need Ray."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.config.checks.space import (
    count_trials,
    is_drawn,
    list_mutated_paths,
    make_fan_out_points,
    make_grid_points,
    sort_outer_first,
)
from orchestrator.config.sections.domain import Domain
from orchestrator.config.sections.sweep import PBT, Sweep

if TYPE_CHECKING:
    import optuna


def draw_points(sweep: Sweep) -> list[dict[str, Any]]:
    """Draw the configurations of a grid or random search, without repeats. The same seed gives the same ones."""
    random, fan_out = np.random.RandomState(sweep.seed), make_fan_out_points(sweep)
    count = math.ceil(count_trials(sweep) / sweep.repeats / len(fan_out))
    fixed = itertools.islice(_combine_points_and_grid(sweep), count)
    points = [_fill(sweep, lambda name, domain: draw(domain, random), {**point, **fan_out[0]}) for point in fixed]
    return [{**point, **copy.deepcopy(values)} for point in points for values in fan_out]


def _combine_points_and_grid(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield each of `points` with the grid values that it leaves open, then the rest of each round of the grid."""
    tried = []
    for written in sweep.points:
        for point in make_grid_points(sweep):
            if all(written.get(name, value) == value for name, value in point.items()):
                tried.append(point)
                yield {**point, **written}
    for point in itertools.cycle(make_grid_points(sweep)):
        if point in tried:
            tried.remove(point)
        else:
            yield point


def draw_trials(sweep: Sweep, seed: int) -> list[dict[str, Any]]:
    """Draw the values of each trial of a grid or random search. First repeats have the seed `seed`."""
    return [values for point in draw_points(sweep) for values in add_seeds(sweep, point, seed)]


def add_seeds(sweep: Sweep, values: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Return the values of each trial of a configuration. Repeats have consecutive seeds, starting at `seed`."""
    if sweep.repeats == 1:
        return [dict(values)]
    return [{**values, "seed": seed + repeat} for repeat in range(sweep.repeats)]


def suggest_points(sweep: Sweep, trial: optuna.Trial) -> list[dict[str, Any]]:
    """Return Optuna's suggestion combined with each `fan_out` value."""
    fan_out = make_fan_out_points(sweep)
    values = _fill(sweep, lambda name, domain: suggest(domain, name, trial), fan_out[0])
    return [{**values, **copy.deepcopy(point)} for point in fan_out]


def to_optuna(sweep: Sweep, point: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a point to Optuna's form, as in `suggest`, without values that the space no longer contains."""
    known = {
        name: value
        for name, value in point.items()
        if name in sweep.space and sweep.space[name].kind != "fan_out" and value in sweep.space[name]
    }
    return {
        name: sweep.space[name].values.index(value) if sweep.space[name].is_list else value
        for name, value in known.items()
    }


def _fill(sweep: Sweep, choose: Callable[[str, Domain], Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration: the fixed ones, and a choice for every other path to draw."""
    values: dict[str, Any] = {}
    for name in sort_outer_first(sweep.space):
        if is_drawn(name, sweep.space, values):
            values[name] = copy.deepcopy(fixed[name] if name in fixed else choose(name, sweep.space[name]))
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
    if domain.is_logarithmic:
        return domain.nearest(math.exp(random.uniform(math.log(low), math.log(high))))
    return domain.nearest(random.uniform(low, high))


def suggest(domain: Domain, name: str, trial: optuna.Trial) -> Any:
    """Return Optuna's suggestion for a path; for a list Optuna chooses an index, because a value may be a mapping."""
    if domain.is_list:
        return domain.values[trial.suggest_categorical(name, range(len(domain.values)))]
    low, high = domain.ends
    if domain.kind in ("randint", "lograndint"):
        return trial.suggest_int(name, low, high, log=domain.is_logarithmic)
    return domain.nearest(trial.suggest_float(name, low, high, log=domain.is_logarithmic))


# Mutation


def mutate(sweep: Sweep, values: Mapping[str, Any], random: np.random.RandomState) -> dict[str, Any]:
    """Return the new values of a trial that exploits one with `values`: each is resampled or perturbed, as in PBT."""
    scheduler = sweep.scheduler
    assert isinstance(scheduler, PBT)
    changed = copy.deepcopy(dict(values))
    for name in list_mutated_paths(sweep):
        if name in changed:
            domain = sweep.space[name]
            resamples = random.uniform() < scheduler.resample_probability
            changed[name] = draw(domain, random) if resamples else perturb(domain, changed[name], scheduler, random)
    return changed


def perturb(domain: Domain, value: Any, scheduler: PBT, random: np.random.RandomState) -> Any:
    """Multiply a number by one of the factors, within its domain; in a list, choose the previous or next value."""
    if domain.is_list:
        index = domain.values.index(value) + random.choice([-1, 1])
        return domain.values[min(max(index, 0), len(domain.values) - 1)]
    return domain.nearest(value * random.choice(scheduler.perturbation_factors))


def clip(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """Clip mutated values to their domains."""
    paths = list_mutated_paths(sweep)
    return {name: sweep.space[name].nearest(value) if name in paths else value for name, value in values.items()}
