"""Objects whose attributes may hold state of training: the task, the model, datasets and hooks."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Any, ClassVar

from torch import nn

from hooks.event_plan import Plan
from hooks.hook import Hook
from hooks.hook_state import list_state_fields
from hooks.state import State
from orchestrator.loop.data.phases import Data
from orchestrator.loop.saving.attributes import GENERATORS, list_values
from orchestrator.task import Task

_STATE_METHODS = ("state_dict", "rank_state_dict")


class StateOwner(ABC):
    """An object whose attributes may hold state of training."""

    remedy: ClassVar[str] = ""
    """How to save a value other than a generator."""
    kinds: ClassVar[tuple[type, ...]] = (object,)
    """Types of the values that may be state."""
    is_in_processes = False
    """True if DataLoader workers change it, out of sight of this process."""

    def __init__(self, name: str, root: object) -> None:
        self.name = name
        """Beginning of the paths of its values."""
        self._root = root

    def list_values(self, ignored: Collection[int]) -> dict[str, Any]:
        """Return the values in the attributes by path, without objects of these ids."""
        values = list_values(self._root, self.name, ignored)
        return {path: value for path, value in values.items() if isinstance(value, self.kinds)}

    @abstractmethod
    def saves(self, path: str) -> bool:
        """Return whether checkpoints hold the value at a path."""


class TaskState(StateOwner):
    """The attributes of the task."""

    remedy = "Return it from the task's state_dict(), and restore it in load_state_dict()"

    def __init__(self, task: Task) -> None:
        super().__init__("task", task)

    def saves(self, path: str) -> bool:
        return _has_own_state(self._root, Task)


class ModelState(StateOwner):
    """The attributes of modules, besides their parameters and buffers."""

    remedy = "Make it a buffer, or return it from the module's get_extra_state()"
    # A tensor or an array of a model is as a rule a constant that moves to the device.
    kinds = (int, float, *GENERATORS)

    def __init__(self, module: nn.Module) -> None:
        super().__init__("model", module)
        default = nn.Module.get_extra_state
        self._saved_parts = [
            f"{self.name}.{name}" if name else self.name
            for name, part in module.named_modules()
            if type(part).get_extra_state is not default
        ]

    def saves(self, path: str) -> bool:
        return any(_is_within(path, part) for part in self._saved_parts)


class DatasetState(StateOwner):
    """The generators of a dataset, or of what makes batches of its samples."""

    kinds = GENERATORS

    def __init__(self, phase: str, part: object, *, is_in_processes: bool) -> None:
        super().__init__(f"the {phase} data: {type(part).__name__}", part)
        self.is_in_processes = is_in_processes

    def saves(self, path: str) -> bool:
        return hasattr(self._root, "state_dict")


class HookState(StateOwner):
    """The attributes of a hook."""

    remedy = "Name it in the hook's state_fields, or rank_state_fields if ranks differ"

    def __init__(self, name: str, hook: Hook) -> None:
        super().__init__(f"hooks.{name}", hook)

    def saves(self, path: str) -> bool:
        fields = list_state_fields(self._root)
        return _has_own_state(self._root, Hook) or any(
            _is_within(path, f"{self.name}.{field}") for field in fields
        )


def _has_own_state(root: object, base: type) -> bool:
    """Return whether an object defines a method that saves its state, unlike its base class."""
    return any(
        getattr(type(root), name, None) is not getattr(base, name, None) for name in _STATE_METHODS
    )


def _is_within(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))


def list_datasets(data: Data) -> list[DatasetState]:
    """Return the datasets of the phases, and what makes batches of their samples."""
    has_processes = bool(getattr(data.loaders["train"], "num_workers", 0))
    owners = []
    for phase, loader in data.loaders.items():
        is_in_processes = has_processes and phase == "train"
        for name in ("dataset", "collate_fn"):
            if hasattr(loader, name):
                part = getattr(loader, name)
                owners.append(DatasetState(phase, part, is_in_processes=is_in_processes))
    return owners


def list_hooks(plan: Plan) -> list[HookState]:
    """Return the user's hooks on which training may depend."""
    return [
        HookState(name, hook)
        for name, hook in plan.hooks.items()
        if not hook.observes and not type(hook).__module__.startswith("hooks.")
    ]


def list_unsaved_values(
    owners: Iterable[StateOwner], state: State
) -> Iterator[tuple[StateOwner, str, Any]]:
    """Yield the values of each owner with their paths, but none that an earlier owner has, and no
    part of the model or of an optimizer."""
    seen = {id(part) for part in _list_saved(state)}
    for owner in owners:
        values = owner.list_values(seen)
        seen.update(map(id, values.values()))
        for path, value in values.items():
            yield owner, path, value


def _list_saved(state: State) -> list[object]:
    module = state.module
    return [
        state.model,
        *module.modules(),
        *module.parameters(),
        *module.buffers(),
        *state.optimizers.values(),
    ]
