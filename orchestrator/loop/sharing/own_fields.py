"""The fields of the state that each run of a shared training has for itself.

There is one state, in which runs exchange these fields, instead of a state for each run. Hooks and
the task keep the state that they are given, and every iteration changes most of its fields. States
for each run would need a copy of all others in each iteration.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from hooks.state import State
from orchestrator.loop.sharing.failed_run import mark_failed_run

OWN_FIELDS = (
    "name",
    "config",
    "artifacts",
    "display",
    "checkpoints",
    "media",
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
    """The own fields of a run: `with` puts them into the state, in place of the training's.

    An error is marked as that of the run. Within its own context, a run's context changes nothing.
    """

    def __init__(self, state: State, fields: Mapping[str, Any], run_index: int) -> None:
        self._state = state
        self._other_values = tuple(fields[name] for name in OWN_FIELDS)
        """The run's values while they are not in the state, and those that they replace while they
        are."""
        self._run_index = run_index
        self._depth = 0
        """Number of contexts of this run that are open."""

    def __enter__(self) -> None:
        if self._depth == 0:
            self._exchange()
        self._depth += 1

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._exchange()
        if isinstance(error, Exception):
            mark_failed_run(error, self._run_index)

    def _exchange(self) -> None:
        values = _read_own_fields(self._state)
        for name, value in zip(OWN_FIELDS, self._other_values, strict=True):
            setattr(self._state, name, value)
        self._other_values = values
