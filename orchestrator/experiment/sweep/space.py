"""The space of a sweep: which paths depend on others, and how many trials there are."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.experiment.components import PLAN_KEYS
from orchestrator.experiment.optim.component import parse_optimizer_path
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sections.workers import Workers


def can_mutate(name: str) -> bool:
    """Return whether a population can change a path during training."""
    keys = name.split(".")
    is_field = keys[0] == "hooks" and len(keys) >= 3 and keys[2] not in PLAN_KEYS
    return is_field or parse_optimizer_path(name) is not None


def list_mutated_paths(sweep: SweepSettings) -> list[str]:
    """Return the paths that a population changes during training, in the order of the space."""
    scheduler = sweep.scheduler
    if not isinstance(scheduler, PBT):
        return []
    return [
        name
        for name in sweep.space
        if (can_mutate(name) if scheduler.mutate is None else name in scheduler.mutate)
    ]


def sort_outer_first(space: Mapping[str, Any]) -> list[str]:
    """Return the paths of a space, each after the paths that enclose it."""
    return sorted(space, key=lambda name: name.count("."))


def find_enclosing_path(name: str, space: Mapping[str, Any]) -> str | None:
    return next((outer for outer in space if name.startswith(f"{outer}.")), None)


def is_drawn(name: str, space: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a path is drawn: the choice around it, if any, is on and leaves it open."""
    outer = find_enclosing_path(name, space)
    return outer is None or leaves_open(name.removeprefix(f"{outer}."), values[outer])


def leaves_open(inner: str, value: Any) -> bool:
    """Return whether a choice's value is on and does not set a path inside it."""
    for key in inner.split("."):
        if value is True:
            return True
        if not isinstance(value, Mapping):
            return False
        if key not in value:
            return True
        value = value[key]
    return False


def choose_context(name: str, space: Mapping[str, Domain]) -> dict[str, Any]:
    """Return a value for each swept path that decides what `name` means.

    Those are the choice around it, its `type`, and the task.
    """
    values: dict[str, Any] = {}
    for other in sort_outer_first(space):
        owner = other.removesuffix("type") if other.endswith(".type") else f"{other}."
        if other == name or not (other == "task" or name.startswith(owner)):
            continue
        candidates = space[other].candidates()
        open_values = candidates
        if name.startswith(f"{other}."):
            inner = name.removeprefix(f"{other}.")
            open_values = [value for value in candidates if leaves_open(inner, value)]
        values[other] = (open_values or candidates)[0]
    return values


# The grid


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
        inner = [
            name for name in inside[outer] if leaves_open(name.removeprefix(f"{outer}."), value)
        ]
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
        if is_drawn(name, space, point):
            yield from ({**point, name: value} for value in values)
        else:
            yield point


# Counts


def count_trials(sweep: SweepSettings) -> int:
    """Return the number of trials within the budget."""
    trials = sweep.trials or count_points(sweep) * sweep.repeat_count
    if sweep.budget and sweep.budget.trials:
        return min(trials, sweep.budget.trials)
    return trials


def count_trainings(sweep: SweepSettings, first: int = 0) -> int:
    """Return how many trainings the trials from number `first` on share."""
    trials_per_draw = len(make_fan_out_points(sweep)) * sweep.repeat_count
    numbers = range(first, count_trials(sweep))
    trainings = {(number // trials_per_draw, number % sweep.repeat_count) for number in numbers}
    return len(trainings)


def count_concurrent_trials(
    sweep: SweepSettings, trials: int, workers: Workers, nodes: Iterable[Mapping[str, float]]
) -> int:
    """Return the number of trials that fit side by side on nodes with these resources.

    With a range of ranks, each trial takes the maximum, so that trials do not compete; a single one
    runs with fewer.
    """
    slots = sum(_count_ranks(node, workers) for node in nodes)
    fitting = max(slots // workers.max_count, min(1, slots // workers.min_count))
    return min(trials, fitting, sweep.max_concurrent or trials)


def _count_ranks(node: Mapping[str, float], workers: Workers) -> int:
    """Return how many ranks fit on a node."""
    return min(
        _count_units(node.get(name, 0)) // max(1, _count_units(amount))
        for name, amount in workers.bundle().items()
    )


def _count_units(amount: float) -> int:
    """Count a resource in Ray's own unit, in which 0.6 holds 0.2 three times."""
    return round(amount * 10_000)
