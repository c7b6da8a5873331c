"""The parts of a batch, which may be nested in containers and dataclasses. Used in workers."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any


def moves_itself(part: Any) -> bool:
    """Return whether a part of a batch has its own `to` method, like a tensor."""
    return callable(getattr(part, "to", None))


def items_in(batch: Any) -> list[Any] | None:
    """Return the items of a container; None for anything else, such as what moves itself."""
    if moves_itself(batch):
        return None
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return list(batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in fields(batch)]
    return None


def container_with(batch: Any, items: list[Any]) -> Any:
    """Return a container of the same type with new items."""
    if isinstance(batch, Mapping):
        mapping = copy(batch) if isinstance(batch, MutableMapping) else dict(batch)
        mapping.update(zip(batch, items, strict=True))
        return mapping
    if isinstance(batch, Sequence):
        kind: Any = type(batch)
        return kind(*items) if hasattr(batch, "_fields") else kind(items)
    other = copy(batch)
    for field, item in zip(fields(batch), items, strict=True):
        # Works for frozen dataclasses too.
        object.__setattr__(other, field.name, item)
    return other


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the leaves of a batch: tensors, objects that move themselves, and other values."""
    parts = items_in(batch)
    if parts is None:
        yield batch
        return
    for part in parts:
        yield from leaves(part)
