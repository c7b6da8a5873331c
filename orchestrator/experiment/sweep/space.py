"""The paths of a sweep's space: which of them are inside others, and depend on their values."""

from collections.abc import Mapping
from typing import Any

from orchestrator.experiment.sections.domain import Domain


def sort_outer_first(space: Mapping[str, Any]) -> list[str]:
    """Return the paths of a space, each after the paths that enclose it."""
    return sorted(space, key=lambda name: name.count("."))


def find_enclosing_path(name: str, space: Mapping[str, Any]) -> str | None:
    """Return the path of the space that a path is inside; None if there is none."""
    return next((outer for outer in space if name.startswith(f"{outer}.")), None)


def is_sampled(name: str, space: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a path is sampled: the choice around it, if any, is on and leaves it open."""
    outer = find_enclosing_path(name, space)
    return outer is None or leaves_open(name, outer, values[outer])


def leaves_open(name: str, outer: str, value: Any) -> bool:
    """Return whether a value of the path `outer` is on and does not set the path `name` inside it."""
    for key in name.removeprefix(f"{outer}.").split("."):
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
        if other == name or not _decides_meaning(other, name):
            continue
        candidates = space[other].list_candidates()
        open_values = candidates
        if name.startswith(f"{other}."):
            open_values = [value for value in candidates if leaves_open(name, other, value)]
        values[other] = (open_values or candidates)[0]
    return values


def _decides_meaning(other: str, name: str) -> bool:
    """Return whether a swept path is the task, or the `type` of what `name` is inside, or around
    `name`."""
    owner = other.removesuffix("type") if other.endswith(".type") else f"{other}."
    return other == "task" or name.startswith(owner)
