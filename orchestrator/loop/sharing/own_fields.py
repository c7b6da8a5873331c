"""The fields of the state that each run of a shared training has for itself."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from hooks.state import State
from orchestrator.loop.sharing.failed_run import note_failed_run

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


class OwnFields:
    """The own fields of a run, or of the training: `with` puts them into the state.

    A note on an error names the run. Contexts can be nested.
    """

    def __init__(self, switch: "FieldSwitch", fields: Mapping[str, Any], run_index: int) -> None:
        self.values = tuple(fields[name] for name in OWN_FIELDS)
        """Their values while they are not in the state."""
        self.run_index = run_index
        self._switch = switch
        self._before: list[OwnFields] = []

    def __enter__(self) -> None:
        self._before.append(self._switch.switch_to(self))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._switch.switch_to(self._before.pop())
        if isinstance(error, Exception):
            note_failed_run(error, self.run_index)


class FieldSwitch:
    """Switch between the own fields of several runs and of their training in one state."""

    def __init__(self, state: State) -> None:
        self._state = state
        values = _read_own_fields(state)
        self.training = OwnFields(self, dict(zip(OWN_FIELDS, values, strict=True)), 0)
        """The fields of the training and its hooks, which are in the state first."""
        self._current = self.training
        """The owner of the fields that are in the state now."""

    def switch_to(self, own: OwnFields) -> OwnFields:
        """Put own fields into the state; return those that were there before."""
        before = self._current
        if own is before:
            return before
        before.values = _read_own_fields(self._state)
        for name, value in zip(OWN_FIELDS, own.values, strict=True):
            setattr(self._state, name, value)
        self._current = own
        return before
