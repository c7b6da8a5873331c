"""The space of a sweep: what each dotted path may be, which paths depend on others, and how many trials that makes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from orchestrator.config.components import PLAN_KEYS
from orchestrator.config.sections.domain import Domain
from orchestrator.config.sections.experiment import parse_optimizer_path
from orchestrator.config.sections.sweep import PB2, Asha, Population, Sweep
from orchestrator.config.sections.workers import Workers
from orchestrator.config.text.bounds import MOST_TRIALS
from orchestrator.config.text.reader import join
from orchestrator.errors import Problem, did_you_mean

# Checking


def unsearchable(sweep: Sweep) -> Iterator[Problem]:
    """A problem for each domain that the search cannot draw from."""
    not_for_optuna = {
        "grid": "is gone through whole, which Optuna does not; write choice",
        "normal": "is no distribution that Optuna draws from; write uniform",
    }
    for name, domain in sweep.space.items():
        path = join("sweep.space", f"{name}.{domain.kind}")
        if sweep.search == "grid" and not domain.is_list:
            yield Problem(path, "cannot be searched by grid; give its values as choice or grid, or search: random")
        if sweep.search == "optuna" and domain.kind in not_for_optuna:
            yield Problem(path, not_for_optuna[domain.kind])


def overlaps(sweep: Sweep) -> list[Problem]:
    """A problem for each path inside another one that is no choice of being on, and how."""
    found = ((inner, _wrong_overlap(inner, sweep)) for inner in sweep.space)
    return [Problem(join("sweep.space", inner), message) for inner, message in found if message]


def _wrong_overlap(inner: str, sweep: Sweep) -> str | None:
    outers = [outer for outer in sweep.space if inner.startswith(f"{outer}.")]
    if not outers:
        return None
    if len(outers) > 1:
        return f"lies inside {' and '.join(outers)}; one of them at most can be swept too"
    if sweep.space[inner].kind == "fan_out":
        return f"is `fan_out`, and lies inside '{outers[0]}', which is swept too; write grid"
    outer, domain = outers[0], sweep.space[outers[0]]
    if not domain.is_list or not all(value is None or isinstance(value, bool | dict) for value in domain.values):
        return f"lies inside '{outer}', which is swept too, and not as a choice of null and mappings"
    if not any(_leaves_open(inner.removeprefix(f"{outer}."), value) for value in domain.values):
        return f"is never drawn: every value of '{outer}' is off or says it itself"
    if domain.kind == "choice" and sweep.search != "grid" and sweep.space[inner].kind == "grid":
        return f"is a grid inside '{outer}', which is drawn; write choice"
    return None


def wrong_counts(sweep: Sweep) -> Iterator[Problem]:
    """A problem for trials, repeats and points that do not come out even, and for a seed of nothing; the space has to
    be right."""
    if sweep.repeats > 1 and "seed" in sweep.space:
        yield Problem("sweep.space.seed", f"repeats: {sweep.repeats} gives each trial its seed; leave out one of them")
    if sweep.seed and not _draws(sweep):
        message = f"is read by nothing: search: grid and scheduler: {sweep.scheduler.type} draw nothing"
        yield Problem("sweep.seed", message, suggestion="the runs' own seed stands beside sweep")
    points, whole = count_points(sweep), _round_of(sweep)
    trials = sweep.trials or whole
    if count_trials(sweep) > MOST_TRIALS:
        message = (
            f"makes {count_trials(sweep):,} trials, and a sweep has {MOST_TRIALS:,} at most; draw some of them (search:"
            " random), or leave values out"
        )
        yield Problem("sweep.trials" if sweep.trials else "sweep.space", message)
    times = f" x {sweep.repeats} repeats" if sweep.repeats > 1 else ""
    if sweep.search == "grid" and trials != whole:
        yield Problem(
            "sweep.trials",
            f"a grid of {points} points{times} has {whole} trials, got {trials}; leave it"
            f" out{_instead(trials, points, whole)}",
        )
    elif trials % whole:
        factors = f"{points} points of the grid{times}" if points > 1 else f"{sweep.repeats} repeats"
        below = trials // whole * whole
        even = f"{below} or {below + whole}" if below else whole
        yield Problem(
            "sweep.trials", f"{trials} trials are no whole number of rounds of {whole} ({factors}); write {even}"
        )
    elif len(sweep.points) * whole > trials:
        needed = len(sweep.points) * whole
        yield Problem(
            "sweep.points",
            f"{len(sweep.points)} points make {needed} trials, and there are {trials}; points count among the trials",
        )


def _draws(sweep: Sweep) -> bool:
    """Whether anything of a sweep is drawn: its values, or what its scheduler does."""
    scheduler = sweep.scheduler
    return (
        sweep.search != "grid"
        or isinstance(scheduler, Population)
        or (isinstance(scheduler, Asha) and scheduler.brackets > 1)
    )


def _instead(trials: int, points: int, whole: int) -> str:
    """What to write for another number of trials than a grid has."""
    if trials < whole:
        return f"; budget: {{trials: {trials}}} ends before the grid is through"
    return f"; repeats: {trials // points} runs each point with as many seeds" if trials % points == 0 else ""


def wrong_mutations(sweep: Sweep, also: Collection[str] = ()) -> list[Problem]:
    """What a population cannot change in flight, of the paths that `mutate` names or, without it, of all. A task that
    trains by itself begins anew with other values, so that what lies below the keys in `also` can change too, where
    `mutate` says so."""
    scheduler = sweep.scheduler
    if not isinstance(scheduler, Population):
        return []
    problems = []
    for index, name in enumerate(scheduler.mutate or []):
        path = f"sweep.scheduler.mutate.{index}"
        if name not in sweep.space:
            problems.append(
                Problem(path, f"'{name}' is no path of the space", suggestion=did_you_mean(name, sweep.space))
            )
        elif name.partition(".")[0] not in also and not _may_mutate(name):
            problems.append(
                Problem(path, f"'{name}' cannot change in flight; fields of hooks and numbers of the optimizer can")
            )
    if problems:
        return problems
    if not mutated_paths(sweep):
        others = [name for name in sweep.space if name.partition(".")[0] in also]
        hint = f"write mutate: [{', '.join(others)}], or some of these" if others else None
        message = (
            f"{scheduler.type} finds nothing to change: no field of a hook and no number of the optimizer is swept"
        )
        return [Problem("sweep.scheduler", message, suggestion=hint)]
    if count_trials(sweep) < 2:
        problems.append(
            Problem("sweep.trials", f"{scheduler.type} needs a population of 2 at least, got {count_trials(sweep)}")
        )
    if isinstance(scheduler, PB2):
        problems.extend(_not_for_pb2(sweep))
    return problems


def _not_for_pb2(sweep: Sweep) -> Iterator[Problem]:
    for name in mutated_paths(sweep):
        domain = sweep.space[name]
        if domain.is_list or outer_of(name, sweep.space) or not math.isfinite(domain.ends[0]):
            yield Problem(
                join("sweep.space", name),
                "pb2 models ranges with both ends that are always there; leave it out of mutate, or use pbt",
            )


def _may_mutate(name: str) -> bool:
    keys = name.split(".")
    return (keys[0] == "hooks" and len(keys) >= 3 and keys[2] not in PLAN_KEYS) or parse_optimizer_path(
        name
    ) is not None


def mutated_paths(sweep: Sweep) -> list[str]:
    """The paths that a population changes in flight, in the order of the space; none with other schedulers."""
    scheduler = sweep.scheduler
    if not isinstance(scheduler, Population):
        return []
    return [
        name for name in sweep.space if (_may_mutate(name) if scheduler.mutate is None else name in scheduler.mutate)
    ]


# What is drawn


def in_order(space: Mapping[str, Any]) -> list[str]:
    """The paths of a space, those that others lie in first."""
    return sorted(space, key=lambda name: name.count("."))


def outer_of(name: str, space: Mapping[str, Any]) -> str | None:
    """The choice that a path lies inside of."""
    return next((outer for outer in space if name.startswith(f"{outer}.")), None)


def is_drawn(name: str, space: Mapping[str, Any], drawn: Mapping[str, Any]) -> bool:
    """Whether a path is to be drawn, given what has been: not where the choice it lies in is off or says it itself."""
    outer = outer_of(name, space)
    return outer is None or _leaves_open(name.removeprefix(f"{outer}."), drawn[outer])


def surroundings(name: str, space: Mapping[str, Domain]) -> Iterator[dict[str, Any]]:
    """What a path may be drawn beside, of what decides whether it is there and what it means: the choice it lies in,
    the `type` beside it, the task."""
    values = {other: domain.candidates() for other, domain in space.items() if _decides(other, name)}
    return (point for point in _product(values, space) if is_drawn(name, space, point))


def _decides(other: str, name: str) -> bool:
    """Whether the value of one path decides what another one means."""
    group, names_a_class = (
        name.partition(".")[0],
        other.endswith(".type") or other.count(".") == (other[:6] == "hooks."),
    )
    if other == "task":
        return group in ("task_args", "hooks", "changes", "optimizer", "optimizers", "scheduler")
    if name == "changes":
        return names_a_class and other.partition(".")[0] in ("hooks", "optimizer", "optimizers")
    around = other.removesuffix("type") if other.endswith(".type") else f"{other}."
    return name != other and name.startswith(around)


def _leaves_open(inner: str, value: Any) -> bool:
    """Whether a choice's value is on and leaves a path inside it to be drawn."""
    for key in inner.split("."):
        if value is True:
            return True
        if not isinstance(value, Mapping):
            return False
        if key not in value:
            return True
        value = value[key]
    return False


def grid_points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """The points of the grid, without the `fan_out` paths; one empty point where there is none."""
    return _product(
        {name: values for name, values in _grid(sweep).items() if sweep.space[name].kind != "fan_out"}, sweep.space
    )


def fan_out_points(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the combinations of all `fan_out` values; one empty point where there are none."""
    return list(
        _product({name: domain.values for name, domain in sweep.space.items() if domain.kind == "fan_out"}, sweep.space)
    )


def count_points(sweep: Sweep) -> int:
    """How many points the grid has, without making them."""
    values = _grid(sweep)
    inside: dict[str | None, list[str]] = defaultdict(list)
    for name in values:
        inside[outer_of(name, values)].append(name)

    def beside(outer: str, value: Any) -> int:
        return math.prod(
            len(values[name]) for name in inside[outer] if _leaves_open(name.removeprefix(f"{outer}."), value)
        )

    return math.prod(sum(beside(name, value) for value in values[name]) for name in inside[None])


def _grid(sweep: Sweep) -> dict[str, list[Any]]:
    """The values of every `grid` and `fan_out`, and of every `choice` where search is grid."""
    kinds = ("choice", "grid", "fan_out") if sweep.search == "grid" else ("grid", "fan_out")
    return {name: domain.values for name, domain in sweep.space.items() if domain.kind in kinds}


def _product(values: Mapping[str, list[Any]], space: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each value of each path with each of the others, as far as the paths are drawn beside them; one after the other,
    as there may be more than fit in memory."""
    points: Iterator[dict[str, Any]] = iter([{}])
    for name in in_order(values):
        points = _with_each(points, name, values[name], space)
    return points


def _with_each(
    points: Iterable[dict[str, Any]], name: str, values: list[Any], space: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for point in points:
        if is_drawn(name, space, point):
            yield from ({**point, name: value} for value in values)
        else:
            yield point


def count_trials(sweep: Sweep) -> int:
    """How many trials a sweep has, as far as its budget goes; where it does not say, one round."""
    trials = sweep.trials or _round_of(sweep)
    return min(trials, sweep.budget.trials) if sweep.budget and sweep.budget.trials else trials


def _round_of(sweep: Sweep) -> int:
    """Trials in which each point of the grid, or one configuration where there is none, is run with each of its
    seeds."""
    return count_points(sweep) * sweep.repeats


def count_trainings(sweep: Sweep, begun: int = 0) -> int:
    """How many trainings the trials from number `begun` on take, where each draw is shared by all `fan_out` values,
    with each of its seeds."""
    in_a_draw = len(fan_out_points(sweep)) * sweep.repeats
    return len({(number // in_a_draw, number % sweep.repeats) for number in range(begun, count_trials(sweep))})


def trials_at_once(sweep: Sweep, trials: int, workers: Workers, nodes: Iterable[Mapping[str, float]]) -> int:
    """How many trials run side by side on nodes that have so much (resource to amount): each rank takes a place on one.

    Where trials may have more ranks or fewer, there is room for the most of them, as they would take each other's
    places; a single trial makes do with fewer.
    """
    places = sum(_places(workers.bundle(), node) for node in nodes)
    rooms = max(places // workers.max_count, min(1, places // workers.min_count))
    return min([trials, rooms, *([sweep.max_concurrent] if sweep.max_concurrent else [])])


def _places(asked: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many ranks a node holds, in Ray's own unit, so that 0.6 holds 0.2 three times."""
    return min(_units(node.get(resource, 0)) // max(1, _units(amount)) for resource, amount in asked.items())


def _units(amount: float) -> int:
    return round(amount * 10_000)
