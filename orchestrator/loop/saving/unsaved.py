"""Warnings of state that training changes and no checkpoint holds. Runs in workers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hooks.event_plan import Plan
from hooks.private_torch import get_version
from hooks.state import State
from orchestrator.loop.data.phases import Data
from orchestrator.loop.saving.attributes import GENERATORS, read_generator
from orchestrator.loop.saving.state_owners import (
    ModelState,
    StateOwner,
    TaskState,
    list_datasets,
    list_hooks,
    list_unsaved_values,
)
from orchestrator.task import Task

_CLOCKS = (time.perf_counter, time.monotonic, time.time)
_MAX_COMPARED_BYTES = 65536
"""Size from which an array is compared only by its identity."""


@dataclass(frozen=True)
class _Value:
    """A value of an owner as it was at one moment."""

    owner: StateOwner
    path: str
    value: Any
    content: Any
    """What changes with the value."""


class UnsavedState:
    """The state of a task, its data and its hooks that no model, optimizer or hook saves.

    Compares attributes at the start with those at the first checkpoint. Attributes that were not
    set at the start, such as the last output, are taken for caches.
    """

    def __init__(self, task: Task, state: State, data: Data, plan: Plan) -> None:
        self._state = state
        model = ModelState(state.module)
        self._owners = [TaskState(task), *list_datasets(data), model, *list_hooks(plan)]
        self._clocks = [clock() for clock in _CLOCKS]
        self._at_start = [*self._read_values()]

    def _read_values(self) -> Iterator[_Value]:
        for owner, path, value in list_unsaved_values(self._owners, self._state):
            if not isinstance(value, nn.Parameter) and not owner.saves(path):
                yield _Value(owner, path, value, _describe(value))

    def find_changes(self) -> list[str]:
        """Return a line for each value that has changed since the start and is in no checkpoint."""
        return [*self._find_generators(), *self._find_values()]

    def _find_generators(self) -> Iterator[str]:
        for before in self._at_start:
            if not isinstance(before.value, GENERATORS):
                continue
            is_in_processes = before.owner.is_in_processes
            if is_in_processes or read_generator(before.value) != before.content:
                verb = "may use" if is_in_processes else "uses"
                yield (
                    f"{before.path} is a random generator that training {verb}, and no checkpoint holds its state: a"
                    " resumed run gets other random numbers. Use torch, numpy.random or random instead: checkpoints"
                    " hold their state, and each batch of a DataLoader worker seeds them"
                )

    def _find_values(self) -> Iterator[str]:
        now = {value.path: value for value in self._read_values()}
        for before in self._at_start:
            current = now.get(before.path)
            if current is not None and self._has_changed(before, current):
                yield (
                    f"{before.path} has changed since the start, and no checkpoint holds it: a resumed run begins with"
                    f" its first value. {before.owner.remedy}, if training depends on it"
                )

    def _has_changed(self, before: _Value, current: _Value) -> bool:
        """Return whether a value other than a generator has changed, if it is still of its kind."""
        if isinstance(current.value, GENERATORS) or not _are_of_one_kind(before, current):
            return False
        return bool(current.content != before.content) and not self._is_time(current.value)

    def _is_time(self, value: object) -> bool:
        """Return whether a number is a time that was read from a clock since the start."""
        return isinstance(value, float) and any(
            begin <= value <= clock() for begin, clock in zip(self._clocks, _CLOCKS, strict=True)
        )


def _are_of_one_kind(before: _Value, current: _Value) -> bool:
    """Return whether two values have the same type, or are numbers: a sum that begins with 0 becomes
    a float."""
    numbers = (int, float)
    if isinstance(before.value, numbers):
        return isinstance(current.value, numbers)
    return type(before.value) is type(current.value)


def _describe(value: Any) -> Any:
    """Return what changes with a value, without reading tensors from a device."""
    if isinstance(value, GENERATORS):
        return read_generator(value)
    if isinstance(value, Tensor):
        return id(value), get_version(value)
    if isinstance(value, (int, float)):
        # NaN is unequal to itself.
        return value if value == value else "NaN"
    content = value.tobytes() if value.nbytes < _MAX_COMPARED_BYTES else b""
    return id(value), content
