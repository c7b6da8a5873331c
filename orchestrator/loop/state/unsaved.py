"""Warnings of state that training changes and no checkpoint holds. Runs in workers."""

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from hooks.hook import Hook, list_state_fields
from hooks.parameter_names import listed
from hooks.plan import Plan
from hooks.private_torch import get_version
from hooks.state import State
from orchestrator.loop.data.phases import Data
from orchestrator.loop.state.attributes import GENERATORS, list_values, read_generator
from orchestrator.task import Task

_CLOCKS = (time.perf_counter, time.monotonic, time.time)
_DRAW_ELSEWHERE = (
    "Draw from torch, numpy.random or random instead: checkpoints hold their state, and each batch of a DataLoader"
    " worker seeds them"
)
_IN_MODEL = "Make it a part of the module that model() returns, which is trained, saved and equal on all ranks"
_REMEDIES = {
    "task": "Return it from the task's state_dict(), and restore it in load_state_dict()",
    "model": "Make it a buffer, or return it from the module's get_extra_state()",
    "hooks": "Name it in the hook's state_fields, or rank_state_fields if ranks differ",
}

_STATE_METHODS = ("state_dict", "rank_state_dict")
_MAX_COMPARED_BYTES = 65536
"""Size from which an array is compared only by its identity."""


class UnsavedState:
    """The state of a task, its data and its hooks that no model, optimizer or hook saves.

    Compares attributes at the start with those at the first checkpoint. Attributes that were not
    set at the start, such as the last output, are taken for caches.
    """

    def __init__(self, task: Task, state: State, data: Data, plan: Plan) -> None:
        self._task = task
        self._state = state
        self._plan = plan
        module = state.module
        saved_objects = [
            state.model,
            *module.modules(),
            *module.parameters(),
            *module.buffers(),
            *state.optimizers.values(),
        ]
        self._saved_ids = {id(value) for value in saved_objects}
        self._datasets = {
            phase: loader.dataset
            for phase, loader in data.loaders.items()
            if hasattr(loader, "dataset") and not hasattr(loader.dataset, "state_dict")
        }
        self._has_processes = bool(getattr(data.loaders["train"], "num_workers", 0))
        self._clocks = [clock() for clock in _CLOCKS]
        self._values = self._list_values()
        self._before = {path: _describe(value) for path, value in self._values.items()}

    def _list_values(self) -> dict[str, Any]:
        values = list_values(self._task, "task", self._saved_ids)
        known = self._saved_ids.union(map(id, values.values()))
        for phase, dataset in self._datasets.items():
            name = f"the {phase} data: {type(dataset).__name__}"
            values |= _list_of(dataset, name, known, GENERATORS)
        # A tensor or an array of a model is as a rule a constant that moves to the device.
        module = self._state.module
        values |= _list_of(module, "model", known - {id(module)}, (int, float, *GENERATORS))
        for name, hook in self._plan.hooks.items():
            if not hook.observes and not type(hook).__module__.startswith("hooks."):
                values |= list_values(hook, f"hooks.{name}", known)
        return values

    def find_at_start(self) -> list[str]:
        """Return a line for each parameter that an optimizer trains and no checkpoint holds."""
        if _has_own_method(self._task, Task):
            return []
        trained = self._list_trained()
        return [
            f"the optimizer trains {path}, which is not part of the model, so no checkpoint holds it. {_IN_MODEL}; or"
            " return it from the task's state_dict()"
            for path, value in self._values.items()
            if isinstance(value, nn.Parameter) and id(value) in trained
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
        for path, value in self._values.items():
            if isinstance(value, nn.Parameter) and _is_forgotten(value, trained):
                yield (
                    f"{path} gets gradients, but no optimizer trains it, because it is not part of the model."
                    f" {_IN_MODEL}"
                )
        named = self._state.module.named_parameters()
        forgotten = [name for name, value in named if _is_forgotten(value, trained)]
        if forgotten:
            yield (
                f"parameters of the model get gradients, but no optimizer trains them: {listed(forgotten, 4)}. Create"
                " them in model(), not later, and give them to the optimizer, or call requires_grad_(False) on them"
            )

    def _find_generators(self) -> Iterator[str]:
        saved = self._list_saved()
        for path, value in self._values.items():
            if not isinstance(value, GENERATORS) or _is_within(path, saved):
                continue
            in_workers = self._has_processes and path.startswith("the train data: ")
            if in_workers or read_generator(value) != self._before[path]:
                verb = "may draw" if in_workers else "draws"
                yield (
                    f"{path} is a generator of its own, from which training {verb}, and no checkpoint holds its state:"
                    f" a resumed run gets other random numbers. {_DRAW_ELSEWHERE}"
                )

    def _find_values(self) -> Iterator[str]:
        now = self._list_values()
        saved = self._list_saved()
        for path, before in self._before.items():
            value = now.get(path)
            if value is None or _is_within(path, saved):
                continue
            if isinstance(value, (nn.Parameter, *GENERATORS)):
                continue
            if type(value) is not type(self._values[path]):
                continue
            if _describe(value) == before or self._is_time(value):
                continue
            remedy = _REMEDIES[path.partition(".")[0]]
            yield (
                f"{path} has changed since the start, and no checkpoint holds it: a resumed run begins with its first"
                f" value. {remedy}, if training depends on it"
            )

    def _list_saved(self) -> tuple[str, ...]:
        """Return the beginnings of paths whose values an owner saves in checkpoints."""
        saved = []
        if _has_own_method(self._task, Task):
            saved.append("task.")
        for name, hook in self._plan.hooks.items():
            if _has_own_method(hook, Hook):
                saved.append(f"hooks.{name}.")
            saved += [f"hooks.{name}.{field}." for field in list_state_fields(hook)]
        for place, part in self._state.module.named_modules():
            if type(part).get_extra_state is not nn.Module.get_extra_state:
                saved.append(f"model.{place}." if place else "model.")
        return tuple(saved)

    def _is_time(self, value: object) -> bool:
        """Return whether a number is a time that was read from a clock since the start."""
        if not isinstance(value, float):
            return False
        return any(
            begin <= value <= clock() for begin, clock in zip(self._clocks, _CLOCKS, strict=True)
        )


def _is_forgotten(parameter: nn.Parameter, trained: set[int]) -> bool:
    return parameter.grad is not None and id(parameter) not in trained


def _list_of(root: object, name: str, ignored: set[int], kinds: tuple[type, ...]) -> dict[str, Any]:
    """Return the values of these types in an object's attributes by path."""
    values = list_values(root, name, ignored)
    return {path: value for path, value in values.items() if isinstance(value, kinds)}


def _is_within(path: str, beginnings: tuple[str, ...]) -> bool:
    """Return whether a path is one of these, which end in a dot, or leads to a part of one."""
    return f"{path.replace('[', '.[')}.".startswith(beginnings)


def _has_own_method(owner: Task | Hook, base: type[Task | Hook]) -> bool:
    return any(
        getattr(type(owner), name, None) is not getattr(base, name, None) for name in _STATE_METHODS
    )


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
