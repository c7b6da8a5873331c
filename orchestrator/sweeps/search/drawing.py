"""Values drawn from a sweep's space: grids and random values."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.grid import (
    combine_points_with_grid,
    make_fan_out_points,
    make_grid_points,
)
from orchestrator.experiment.sweep.space import is_sampled, sort_outer_first
from orchestrator.experiment.sweep.trial_counts import count_trials


def draw_trials(sweep: SweepSettings, seed: int) -> list[dict[str, Any]]:
    """Draw the values of each trial of a grid or random search. `seed` is that of the
    experiment."""
    trials = (repeat(sweep, point, seed) for point in draw_points(sweep))
    return list(itertools.chain.from_iterable(trials))


def repeat(sweep: SweepSettings, values: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Return the values of each trial of a configuration, which differ in the repeated path."""
    if sweep.repeat_count == 1:
        return [dict(values)]
    path = sweep.repeated_path
    return [{**values, path: value} for value in sweep.list_repeated_values(seed)]


def draw_points(sweep: SweepSettings) -> list[dict[str, Any]]:
    """Draw the configurations of a grid or random search, without repeats. The same seed gives the
    same ones."""
    random = np.random.RandomState(sweep.seed)
    fan_out = make_fan_out_points(sweep)
    count = math.ceil(count_trials(sweep) / sweep.repeat_count / len(fan_out))

    points: list[dict[str, Any]] = []
    for fixed in itertools.islice(_combine_points_and_grid(sweep), count):
        drawn = fill_point(sweep, lambda _, domain: draw(domain, random), {**fixed, **fan_out[0]})
        points.extend({**drawn, **copy.deepcopy(values)} for values in fan_out)
    return points


def _combine_points_and_grid(sweep: SweepSettings) -> Iterator[dict[str, Any]]:
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


def fill_point(
    sweep: SweepSettings, choose: Callable[[str, Domain], Any], fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a configuration: the fixed ones, and a choice for every other path to
    draw."""
    values: dict[str, Any] = {}
    for name in sort_outer_first(sweep.space):
        if is_sampled(name, sweep.space, values):
            value = fixed[name] if name in fixed else choose(name, sweep.space[name])
            values[name] = copy.deepcopy(value)
    return values


def draw(domain: Domain, random: np.random.RandomState) -> Any:
    if domain.is_list:
        return domain.values[random.randint(len(domain.values))]
    if domain.kind == "normal":
        return domain.find_nearest(random.normal(domain.values[0], domain.values[1]))

    low, high = domain.ends
    if domain.step is None:
        return domain.find_nearest(_draw_number(low, high, domain, random))
    if domain.is_logarithmic:
        # A value has the share of the logarithmic scale up to the next one.
        number = _draw_number(low, high + domain.step, domain, random)
        return domain.find_nearest(low + math.floor((number - low) / domain.step) * domain.step)
    n_values = round((high - low) / domain.step) + 1
    return domain.find_nearest(low + random.randint(n_values) * domain.step)


def _draw_number(low: float, high: float, domain: Domain, random: np.random.RandomState) -> float:
    """Draw a number between two ends, on the scale of a domain."""
    if domain.is_logarithmic:
        return math.exp(random.uniform(math.log(low), math.log(high)))
    return random.uniform(low, high)
