"""The space of a sweep: what each dotted path may be, and how many trials that makes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from orchestrator.config.experiment import Sweep
from orchestrator.config.imports import did_you_mean
from orchestrator.config.reader import join
from orchestrator.errors import Problem

LISTS = ("choice", "grid")
"""Domains that are a list of values."""

RANGES = {"uniform": 2, "loguniform": 2, "quniform": 3, "randint": 2, "lograndint": 2, "normal": 2}
"""Domains that are numbers, with how many they take: low and high, `quniform` a step too, `normal` mean and sd."""

FIXED = ("name", "sweep", "workers", "base")
"""What every trial of a sweep shares."""


def wrong_domain(name: str, domain: Any, search: str) -> Problem | None:
    """What is wrong with one domain by itself, such as `{uniform: [1, 0]}`."""
    path = join("sweep.space", name)
    kinds = ", ".join([*LISTS, *RANGES])
    if name.split(".")[0] in FIXED:
        return Problem(path, f"cannot be swept: the trials of a sweep share their {name.split('.')[0]}")
    if not isinstance(domain, Mapping) or len(domain) != 1:
        return Problem(path, f"must have exactly one of {kinds}, got {domain!r}")
    ((kind, values),) = domain.items()
    if kind not in LISTS and kind not in RANGES:
        return Problem(
            join(path, kind), f"is no domain; allowed: {kinds}", suggestion=did_you_mean(kind, [*LISTS, *RANGES])
        )
    if search == "grid" and kind not in LISTS:
        return Problem(
            join(path, kind), "cannot be searched by grid; give its values as choice or grid, or search: random"
        )
    message = _wrong_list(values) if kind in LISTS else _wrong_range(kind, values)
    return Problem(join(path, kind), message) if message else None


def _wrong_list(values: Any) -> str | None:
    return None if isinstance(values, list) and values else f"must be a list of values, got {values!r}"


def _wrong_range(kind: str, values: Any) -> str | None:
    count = RANGES[kind]
    shape = {"quniform": "[low, high, step]", "normal": "[mean, sd]"}.get(kind, "[low, high]")
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != count:
        return f"must be {shape}, got {values!r}"
    if kind in ("randint", "lograndint") and not all(type(value) is int for value in values):
        return f"must be whole numbers, got {values!r}"
    if kind == "normal":
        return None if values[1] > 0 else f"must have an sd greater than 0, got {values[1]}"
    if not values[0] < values[1]:
        return f"must have low < high, got {values!r}"
    if kind in ("loguniform", "lograndint") and values[0] <= 0:
        return f"must have low > 0, got {values[0]}"
    return f"must have a step greater than 0, got {values[2]}" if kind == "quniform" and values[2] <= 0 else None


def candidates(kind: str, values: list[Any]) -> list[Any]:
    """The values to try a domain by: each of a list, both ends of a range, three deviations around a mean."""
    if kind in LISTS:
        return values
    if kind == "normal":
        mean, sd = values
        return [float(mean), float(mean - 3 * sd), float(mean + 3 * sd)]
    low, high = values[:2]
    return [low, high - 1] if kind in ("randint", "lograndint") else [float(low), float(high)]


def overlaps(names: list[str]) -> list[Problem]:
    """A problem for each path that lies inside another one of the space."""
    return [
        Problem(join("sweep.space", inner), f"lies inside '{outer}', which is swept too")
        for outer in names
        for inner in names
        if inner.startswith(f"{outer}.")
    ]


def count_trials(sweep: Sweep) -> int:
    """How many trials a sweep has: `trials`, times the points of the grid."""
    gridded = LISTS if sweep.search == "grid" else ("grid",)
    return sweep.trials * prod(
        len(values) for domain in sweep.space.values() for kind, values in domain.items() if kind in gridded
    )


def trials_at_once(sweep: Sweep, trials: int, asked: Mapping[str, float], present: Mapping[str, float]) -> int:
    """How many trials run side by side where each asks for `asked` (resource to amount) and there is `present`."""
    rooms = [int(present.get(resource, 0) / amount) for resource, amount in asked.items() if amount]
    return min([trials, *rooms, *([sweep.max_concurrent] if sweep.max_concurrent else [])])
