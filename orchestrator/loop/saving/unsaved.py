"""Warnings of state that training changes and no checkpoint holds. Runs in workers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from hooks.event_plan import Plan
from hooks.hook import Hook
from hooks.hook_state import list_state_fields
from hooks.parameter_names import join_names
from hooks.private_torch import get_version
from hooks.state import State
from orchestrator.loop.data.phases import Data
from orchestrator.loop.saving.attributes import GENERATORS, list_values, read_generator
from orchestrator.task import Task

_CLOCKS = (time.perf_counter, time.monotonic, time.time)
_DRAW_ELSEWHERE = (
    "Draw from torch, numpy.random or random instead: checkpoints hold their state, and each batch of a DataLoader"
    " worker seeds them"
)
_IN_MODEL = "Make it a part of the module that model() returns, which is trained, saved and equal on all ranks"
_STATE_METHODS = ("state_dict", "rank_state_dict")
_MAX_COMPARED_BYTES = 65536
"""Size from which an array is compared only by its identity."""


@dataclass(frozen=True)
class _Owner:
    """An object whose attributes may hold state of training."""

    name: str
    """Beginning of the paths of its values."""
    root: object
    kinds: tuple[type, ...] = (object,)
    """Types of the values that may be state."""
    remedy: str = ""
    """How to save a value other than a generator."""
    is_in_processes: bool = False
    """True for a dataset that DataLoader workers change, out of sight of this process."""

    def watch(self, ignored: set[int]) -> "list[_Watched]":
        """Return the values in the attributes, without objects of these ids."""
        values = list_values(self.root, self.name, ignored)
        return [
            _Watched(self, path, value, _describe(value))
            for path, value in values.items()
            if isinstance(value, self.kinds)
        ]

    def saves(self, path: str) -> bool:
        """Return whether checkpoints hold the value at a path, or a value that contains it."""
        places = [f"{self.name}.{name}" if name else self.name for name in _list_saved(self.root)]
        return any(path == place or path.startswith((f"{place}.", f"{place}[")) for place in places)


class _Watched(NamedTuple):
    """A value of an owner as it was at one moment."""

    owner: _Owner
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
        self._task = _Owner(
            "task",
            task,
            remedy="Return it from the task's state_dict(), and restore it in load_state_dict()",
        )
        model = _Owner(
            "model",
            state.module,
            # A tensor or an array of a model is as a rule a constant that moves to the device.
            (int, float, *GENERATORS),
            "Make it a buffer, or return it from the module's get_extra_state()",
        )
        self._others = [*_list_datasets(data), model, *_list_hooks(plan)]
        self._clocks = [clock() for clock in _CLOCKS]
        self._at_start = self._list_watched()

    def _list_watched(self) -> list[_Watched]:
        module = self._state.module
        saved_objects = [
            self._state.model,
            *module.modules(),
            *module.parameters(),
            *module.buffers(),
            *self._state.optimizers.values(),
        ]
        saved = {id(value) for value in saved_objects}
        watched = self._task.watch(saved)
        known = saved.union(id(entry.value) for entry in watched)
        for owner in self._others:
            # What the module saves are its parameters and buffers, not all of its attributes.
            watched += owner.watch(known - {id(module)} if owner.root is module else known)
        return watched

    def find_at_start(self) -> list[str]:
        """Return a line for each parameter that an optimizer trains and no checkpoint holds."""
        if self._task.saves(self._task.name):
            return []
        trained = self._list_trained()
        return [
            f"the optimizer trains {watched.path}, which is not part of the model, so no checkpoint holds it."
            f" {_IN_MODEL}; or return it from the task's state_dict()"
            for watched in self._at_start
            if isinstance(watched.value, nn.Parameter) and id(watched.value) in trained
        ]

    def find_changes(self) -> list[str]:
        """Return a line for each value that has changed since the start and is in no checkpoint."""
        return [*self._find_untrained(), *self._find_generators(), *self._find_values()]

    def _list_trained(self) -> set[int]:
        """Return the ids of the parameters that optimizers train."""
        trained: set[int] = set()
        for optimizer in self._state.optimizers.values():
            for group in optimizer.param_groups:
                trained.update(map(id, group["params"]))
        return trained

    def _find_untrained(self) -> Iterator[str]:
        trained = self._list_trained()
        for watched in self._at_start:
            if isinstance(watched.value, nn.Parameter) and _is_forgotten(watched.value, trained):
                yield (
                    f"{watched.path} gets gradients, but no optimizer trains it, because it is not part of the model."
                    f" {_IN_MODEL}"
                )
        named = self._state.module.named_parameters()
        forgotten = [name for name, value in named if _is_forgotten(value, trained)]
        if forgotten:
            yield (
                f"parameters of the model get gradients, but no optimizer trains them: {join_names(forgotten, 4)}."
                " Create them in model(), not later, and give them to the optimizer, or call"
                " requires_grad_(False) on them"
            )

    def _find_generators(self) -> Iterator[str]:
        for owner, path, generator, content in self._at_start:
            if not isinstance(generator, GENERATORS) or owner.saves(path):
                continue
            if owner.is_in_processes or read_generator(generator) != content:
                verb = "may draw" if owner.is_in_processes else "draws"
                yield (
                    f"{path} is a generator of its own, from which training {verb}, and no checkpoint holds its state:"
                    f" a resumed run gets other random numbers. {_DRAW_ELSEWHERE}"
                )

    def _find_values(self) -> Iterator[str]:
        now = {watched.path: watched for watched in self._list_watched()}
        for before in self._at_start:
            current = now.get(before.path)
            if current is None or isinstance(current.value, (nn.Parameter, *GENERATORS)):
                continue
            has_changed = current.content != before.content and not self._is_time(current.value)
            is_same_kind = type(current.value) is type(before.value)
            if has_changed and is_same_kind and not before.owner.saves(before.path):
                yield (
                    f"{before.path} has changed since the start, and no checkpoint holds it: a resumed run begins with"
                    f" its first value. {before.owner.remedy}, if training depends on it"
                )

    def _is_time(self, value: object) -> bool:
        """Return whether a number is a time that was read from a clock since the start."""
        return isinstance(value, float) and any(
            begin <= value <= clock() for begin, clock in zip(self._clocks, _CLOCKS, strict=True)
        )


def _is_forgotten(parameter: nn.Parameter, trained: set[int]) -> bool:
    return parameter.grad is not None and id(parameter) not in trained


def _list_datasets(data: Data) -> list[_Owner]:
    """Return the datasets that save no state, whose generators may be state."""
    has_processes = bool(getattr(data.loaders["train"], "num_workers", 0))
    return [
        _Owner(
            f"the {phase} data: {type(loader.dataset).__name__}",
            loader.dataset,
            GENERATORS,
            is_in_processes=has_processes and phase == "train",
        )
        for phase, loader in data.loaders.items()
        if hasattr(loader, "dataset") and not hasattr(loader.dataset, "state_dict")
    ]


def _list_hooks(plan: Plan) -> list[_Owner]:
    """Return the user's hooks on which training may depend."""
    remedy = "Name it in the hook's state_fields, or rank_state_fields if ranks differ"
    return [
        _Owner(f"hooks.{name}", hook, remedy=remedy)
        for name, hook in plan.hooks.items()
        if not hook.observes and not type(hook).__module__.startswith("hooks.")
    ]


def _list_saved(root: object) -> list[str]:
    """Return the names of an object's attributes that it saves in checkpoints; an empty name stands
    for all."""
    if isinstance(root, Task | Hook):
        base = Task if isinstance(root, Task) else Hook
        if any(
            getattr(type(root), name, None) is not getattr(base, name, None)
            for name in _STATE_METHODS
        ):
            return [""]
        return list_state_fields(root) if isinstance(root, Hook) else []
    if not isinstance(root, nn.Module):
        return []
    parts = root.named_modules()
    default = nn.Module.get_extra_state
    return [name for name, part in parts if type(part).get_extra_state is not default]


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
