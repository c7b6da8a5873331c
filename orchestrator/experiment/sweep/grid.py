"""The grid of a sweep, and the combinations of its `fan_out` values."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import (
    find_enclosing_path,
    is_sampled,
    leaves_open,
    sort_outer_first,
)


def make_grid_points(sweep: SweepSettings) -> Iterator[dict[str, Any]]:
    """Yield the points of the grid without `fan_out` paths; one empty point if there is no grid."""
    grid = {
        name: values
        for name, values in _make_grid(sweep).items()
        if sweep.space[name].kind != "fan_out"
    }
    return _multiply(grid, sweep.space)


def combine_points_with_grid(
    sweep: SweepSettings,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each of `points`, with each point of the grid that has the same values of its paths."""
    for written in sweep.points:
        for point in make_grid_points(sweep):
            if all(written.get(name, value) == value for name, value in point.items()):
                yield written, point


def make_fan_out_points(sweep: SweepSettings) -> list[dict[str, Any]]:
    """Return the combinations of `fan_out` values; one empty point if there are none."""
    values = {
        name: domain.values for name, domain in sweep.space.items() if domain.kind == "fan_out"
    }
    return list(_multiply(values, sweep.space))


def count_points(sweep: SweepSettings) -> int:
    """Return the number of points of the grid, without creating them."""
    values = _make_grid(sweep)
    inside: dict[str | None, list[str]] = defaultdict(list)
    for name in values:
        inside[find_enclosing_path(name, values)].append(name)

    def count_inside(outer: str, value: Any) -> int:
        inner = [name for name in inside[outer] if leaves_open(name, outer, value)]
        return math.prod(len(values[name]) for name in inner)

    total = 1
    for outer in inside[None]:
        total *= sum(count_inside(outer, value) for value in values[outer])
    return total


def _make_grid(sweep: SweepSettings) -> dict[str, list[Any]]:
    """Return the values of each path of the grid; with `search: grid` also of each `choice`."""
    kinds = ("choice", "grid", "fan_out") if sweep.search.type == "grid" else ("grid", "fan_out")
    return {name: domain.values for name, domain in sweep.space.items() if domain.kind in kinds}


def _multiply(
    values: Mapping[str, list[Any]], space: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield all combinations of values lazily, because there may be more than fit in memory."""
    points: Iterator[dict[str, Any]] = iter([{}])
    for name in sort_outer_first(values):
        points = _extend(points, name, values[name], space)
    return points


def _extend(
    points: Iterable[dict[str, Any]], name: str, values: list[Any], space: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for point in points:
        if is_sampled(name, space, point):
            yield from ({**point, name: value} for value in values)
        else:
            yield point
