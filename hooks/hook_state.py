"""The attributes of a hook that checkpoints keep."""

from collections.abc import Mapping
from itertools import chain
from typing import Any


def list_fields(hook: object, kind: str) -> list[str]:
    """Return the attributes that a hook's classes name in `kind`, without duplicates."""
    return list_class_fields(type(hook), kind)


def list_class_fields(cls: type, kind: str) -> list[str]:
    """Return the attributes that a class and its bases name in `kind`, without duplicates."""
    names = chain.from_iterable(vars(base).get(kind, ()) for base in cls.__mro__)
    return list(dict.fromkeys(names))


def find_shared_key(cls: type, kind: str) -> tuple[str, str] | None:
    """Return two attributes of `kind` that a checkpoint would keep under one key; None if there are
    none."""
    names: dict[str, str] = {}
    for name in list_class_fields(cls, kind):
        other = names.setdefault(name.removeprefix("_"), name)
        if other != name:
            return other, name
    return None


def list_state_fields(hook: object) -> list[str]:
    """Return the attributes of a hook that checkpoints keep, for all ranks or for each."""
    return [*list_fields(hook, "state_fields"), *list_fields(hook, "rank_state_fields")]


def get_state(hook: object, kind: str, method: str) -> dict[str, Any]:
    """Return the values of a hook's attributes, by their names without an underscore in front.

    Args:
        hook: The hook.
        kind: The class attribute that names them: `state_fields` or `rank_state_fields`.
        method: Name of the method that gives the state of an attribute that has one.

    Returns:
        The values or states.
    """
    state = {}
    for name in list_fields(hook, kind):
        part = getattr(hook, name)
        value = getattr(part, method)() if hasattr(part, method) else part
        state[name.removeprefix("_")] = value
    return state


def set_state(hook: object, kind: str, method: str, state: Mapping[str, Any]) -> None:
    """Set attributes of a hook to values that `get_state` returned, or load them by a method of
    their own."""
    for name in list_fields(hook, kind):
        key = name.removeprefix("_")
        if key not in state:
            raise ValueError(
                f"the checkpoint has no '{key}', which {kind} names;"
                " give the hook another name, under which it starts as new"
            )
        part = getattr(hook, name)
        value = state[key]
        if hasattr(part, method):
            getattr(part, method)(value)
        else:
            setattr(hook, name, value)
