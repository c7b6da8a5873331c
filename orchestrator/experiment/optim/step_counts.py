"""Arguments of a scheduler that count its steps: the length of its schedule, and times in it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import ConfigError, Problem
from orchestrator.experiment.optim.scheduler import list_argument_names
from orchestrator.task import Task

LENGTHS = ("T_max", "total_steps", "total_iters")
"""Arguments for the length of a schedule; by default the run's length."""
_COUNTS = (*LENGTHS, "step_size", "step_size_up", "step_size_down")
"""Arguments that torch would find to be wrong only at a step."""
_COUNTED_FROM_START = {*LENGTHS, "milestones"}
"""Arguments that count from the run's beginning, even where the scheduler begins after a
warm-up."""
_CYCLE_LENGTH = {"epochs", "steps_per_epoch"}
"""The other way to set the length of a OneCycleLR: its product."""


def find_wrong_counts(arguments: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield a problem for each count of a scheduler of torch that is not positive."""
    for key in _COUNTS:
        count = arguments.get(key)
        if isinstance(count, int | float) and count <= 0:
            yield Problem(f"{path}.{key}", f"must be greater than 0, got {count}")


def add_length(
    kind: str, arguments: Mapping[str, Any], task: type[Task], length: int, path: str
) -> dict[str, Any]:
    """Return the arguments with the length of a schedule, unless they have one.

    Args:
        kind: The scheduler's `type`.
        arguments: The written arguments.
        task: The class of the task, whose method may make the scheduler.
        length: The scheduler's steps in the run.
        path: Dotted path of the scheduler.

    Returns:
        A copy of the arguments.

    Raises:
        ConfigError: If a written length is too short.
    """
    names = list_argument_names(kind, task, path)
    if kind == "OneCycleLR":
        _check_cycle_length(arguments, length, path)
        if _CYCLE_LENGTH & arguments.keys():
            names.discard("total_steps")
    missing = [name for name in LENGTHS if name in names and arguments.get(name) is None]
    return {**arguments, **dict.fromkeys(missing, length)}


def _check_cycle_length(arguments: Mapping[str, Any], length: int, path: str) -> None:
    """Raise ConfigError for a cycle that ends within the run, where torch would raise."""
    keys = _CYCLE_LENGTH if _CYCLE_LENGTH & arguments.keys() else {"total_steps"}
    counts: list[Any] = [arguments.get(key) for key in keys]
    if not all(type(count) is int for count in counts):
        return
    total = math.prod(counts)
    if 0 < total < length:
        rule = f"must be at least {length}, the scheduler's steps in this run"
        raise ConfigError.at(f"{path}.total_steps", f"{rule}, got {total}")


def count_from(begin: int, arguments: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments, those that count from the run's beginning counted from `begin`.

    Raises ConfigError for a count that is not after `begin`.
    """
    changed = dict(arguments)
    for key in _COUNTED_FROM_START & arguments.keys():
        value = arguments[key]
        counts = value if isinstance(value, list) else [value]
        if not all(type(count) is int and count > begin for count in counts):
            rule = f"must be an integer greater than the warm-up of {begin}, got {value!r}"
            raise ConfigError.at(f"{path}.{key}", f"counts from the run's beginning, and {rule}")
        rest = [count - begin for count in counts]
        changed[key] = rest if isinstance(value, list) else rest[0]
    return changed
