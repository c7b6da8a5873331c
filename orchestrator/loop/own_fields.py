"""The fields of the state that each run of a shared training has for itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from hooks.state import State

OWN_FIELDS = (
    "name",
    "config",
    "artifacts",
    "display",
    "checkpoints",
    "recent",
    "info",
    "metrics",
    "evaluations",
    "checkpoint_reasons",
    "stop_reasons",
    "pause_reasons",
)
"""Fields of the state that each run has for itself, and so have the training and its hooks."""
_read_own_fields = attrgetter(*OWN_FIELDS)


@dataclass
class OwnFields:
    """The values of the `OWN_FIELDS` of a run, or of the training, while they are not in the
    state."""

    values: tuple[Any, ...]

    @classmethod
    def choose(cls, fields: Mapping[str, Any]) -> Self:
        """Return the own fields among the fields of a state."""
        return cls(tuple(fields[name] for name in OWN_FIELDS))


class FieldSwitch:
    """Switch between the own fields of several runs and of their training in one state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._training = OwnFields(())
        self._current = self._training
        """The owner of the fields that are in the state now."""

    def switch_to(self, own: OwnFields) -> OwnFields:
        """Put the own fields of a run, or of the training, into the state; return those that were
        there before."""
        before = self._current
        if own is before:
            return before
        before.values = _read_own_fields(self._state)
        for name, value in zip(OWN_FIELDS, own.values, strict=True):
            setattr(self._state, name, value)
        self._current = own
        return before

    @contextmanager
    def of_training(self) -> Iterator[None]:
        """Have the fields of the training itself in the state."""
        before = self.switch_to(self._training)
        try:
            yield
        finally:
            self.switch_to(before)
