"""What a hook does in its events, seen from outside: values read from the device, collectives, and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.hook import WITHIN_ITERATION, Hook
from hooks.interval import Interval, is_due_now
from hooks.plan import Call, Plan
from hooks.private_torch import TorchDispatchMode, tree_leaves
from hooks.state import State
from orchestrator.loop.step.iterations import COUNTERS
from orchestrator.stats.aggregate.spans import TIMES
from orchestrator.testing.failure import CheckStopped, Failure
from orchestrator.testing.shared_state import SharedState

READS = frozenset(
    {
        "item",
        "tolist",
        "numpy",
        "cpu",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__array__",
        "is_nonzero",
        "equal",
        "allclose",
        "nonzero",
        "argwhere",
        "masked_select",
        "unique",
        "unique_consecutive",
        "bincount",
        "new_tensor",
    }
)
"""Functions whose answer the host must have, a number or a shape, before it goes on; or that copy from its memory,
which waits too."""
MADE_ON_THE_HOST = frozenset(
    {
        "tensor",
        "as_tensor",
        "from_numpy",
        "zeros",
        "ones",
        "full",
        "empty",
        "eye",
        "arange",
        "linspace",
        "rand",
        "randn",
        "randint",
        "randperm",
    }
)
"""Functions whose tensor lies in the host's memory where no device is said: reading that waits for nothing."""
OF_THE_LOOP = frozenset({"rank", "node", "attempt", "phase", "epoch", "loss", "lr", *COUNTERS, *TIMES})
"""Columns that every row has: a hook's of the same name would be dropped."""


class DeviceReads(TorchFunctionMode):
    """Stands in on the CPU for a device: calls `found` with the function's name where a value is read that a device
    would hold."""

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__()
        self._found = found
        self._on_host = WeakIdKeyDictionary()
        self._asked = WeakIdKeyDictionary()
        """Tensors whose device the hook has looked at: it knows what reading them costs."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]
        on_host = all(tensor in self._on_host for tensor in tensors)
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
            self._asked[args[0]] = True
        known = on_host or any(tensor in self._asked for tensor in tensors)
        if not known and (name in READS or (name == "__getitem__" and _has_mask(args[1]))):
            self._found("indexing by a mask" if name == "__getitem__" else name.strip("_"))
        result = func(*args, **kwargs)
        stays = on_host and name != "to" and kwargs.get("device") is None
        if stays and (tensors or name in MADE_ON_THE_HOST):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._on_host[leaf] = True
        return result


def _has_mask(index: Any) -> bool:
    return any(
        isinstance(leaf, Tensor) and not leaf.dtype.is_floating_point and leaf.dtype.itemsize == 1
        for leaf in tree_leaves(index)
    )


class Collectives(TorchDispatchMode):
    """Calls `found` with the name of each collective before it is begun."""

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no types
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self._found(func.name().partition("::")[2].strip("_"))
        return func(*args, **(kwargs or {}))


class Watch:
    """Looks at a hook's calls of one loop; raises CheckStopped where it does what it has not declared."""

    def __init__(self, hook: Hook, plan: Plan, *, collectives: bool, observes: bool) -> None:
        self._hook, self._observes = hook, observes
        self._event = ""
        self._modes: dict[bool, list[Any]] = {
            True: [Collectives(self._collective)] if not (collectives or hook.collective) else [],
            False: [DeviceReads(self._read)],
        }
        self.off_pace: dict[str, int] = {}
        """Columns of training, and at which iteration each came first when it was not due."""
        self.recorded: dict[str, int] = {}
        """Columns of training, and how many rows have each."""
        for calls in plan.calls.values():
            for call in calls:
                if plan.hooks.get(call.name) is hook:
                    call.run = self._around(call, call.run)

    def _around(self, call: Call, run: Callable[..., None]) -> Callable[..., None]:
        within = call.event in WITHIN_ITERATION

        def watched(state: State, *arguments: Any) -> None:
            self._event = call.event
            before, shared = dict(state.row), SharedState(state) if self._observes else None
            says_so = call.event in type(self._hook).waits_for_device or call.pace is not None
            with ExitStack() as stack:
                for mode in self._modes[True] + (self._modes[False] if within and not says_so else []):
                    stack.enter_context(mode)
                run(state, *arguments)
            if shared and (told := shared.changed_to(SharedState(state))):
                self._stop(
                    "observes",
                    told,
                    "leave it as it is (torch.random.fork_rng(), a copy of a tensor), or take back that it observes",
                )
            if within:
                self._look_at(
                    {name: value for name, value in state.row.items() if before.get(name) is not value}, call, state
                )

        return watched

    def _look_at(self, columns: Mapping[str, Any], call: Call, state: State) -> None:
        for name, value in columns.items():
            if name in OF_THE_LOOP:
                self._stop(
                    "columns",
                    f"records '{name}', which the loop records itself: the hook's value is dropped",
                    f"give it a name of its own, such as {self._hook.name}_{name}",
                )
            if isinstance(value, Tensor) and value.numel() != 1:
                self._stop(
                    "columns",
                    f"records '{name}', a tensor of shape {tuple(value.shape)}; a row takes one number",
                    "reduce it, or write a column for each",
                )
            if (
                not isinstance(value, (Tensor, int, float, str, bool))
                and not hasattr(value, "item")
                and value is not None
            ):
                self._stop(
                    "columns",
                    f"records '{name}', a {type(value).__name__}; a row takes numbers, text and tensors of one element",
                    "record a number",
                )
            if state.phase == "train":
                self.recorded[name] = self.recorded.get(name, 0) + 1
                paces = paces_of(self._hook)
                if paces and not any(is_due_now(pace, state, counted=call.event == "on_step") for pace in paces):
                    self.off_pace.setdefault(name, state.iteration + (call.event != "on_step"))

    def _read(self, what: str) -> None:
        self._stop(
            "device",
            f"waits for the device in every iteration ({what})",
            "keep the tensor and record it as it is, or read it at a pace (@paced_by) or in on_phase_end; where each"
            " iteration must know it, say so: waits_for_device: ClassVar[frozenset[str]] ="
            f" frozenset({{'{self._event}'}})",
        )

    def _collective(self, what: str) -> None:
        ranks = "" if str(self._hook.ranks) == "all" else f", and runs on {self._hook.ranks} alone"
        self._stop(
            "collectives",
            f"calls a collective ({what}) and does not say so{ranks}: a rank without it would wait for ever",
            "say so: collective: ClassVar[bool] = True, with ranks as they are by default",
        )

    def _stop(self, check: str, what: str, to_do: str) -> None:
        raise CheckStopped(Failure(check, f"{self._event} {what}", to_do))


def paces_of(hook: Hook) -> list[Any]:
    """The paces in steps or iterations that a hook has by its fields: those that events name, and `every`."""
    named = {field for event in WITHIN_ITERATION if (field := getattr(getattr(type(hook), event), "paced_by", None))}
    every = getattr(hook, "every", None)
    paces = [getattr(hook, field) for field in named] + [every] * isinstance(every, Interval)
    return [pace for pace in paces if isinstance(pace, int) or pace.unit == "steps"]
