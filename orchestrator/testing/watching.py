"""Observers of a hook's events: device reads, collectives, columns, and shared state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.hook import WITHIN_ITERATION, Hook
from hooks.interval import Interval, is_due_now
from hooks.plan import Call, Plan
from hooks.private_torch import TorchDispatchMode, tree_leaves
from hooks.state import State
from orchestrator.loop.step.iterations import COUNTERS
from orchestrator.randomness import storable_random_state
from orchestrator.stats.aggregate.spans import TIMES
from orchestrator.testing.trees import copied, difference

READS = frozenset(
    "item tolist numpy cpu __bool__ __float__ __int__ __index__ __array__ is_nonzero equal allclose nonzero argwhere"
    " masked_select unique unique_consecutive bincount new_tensor".split()
)
"""Functions whose result the host must have before it continues, or that copy from its memory."""
FACTORIES = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty eye arange linspace rand randn randint randperm".split()
)
"""Functions that make a tensor on the host if they get no device: reading it waits for nothing."""
LOOP_COLUMNS = frozenset({"rank", "node", "attempt", "phase", "epoch", "loss", "lr", *COUNTERS, *TIMES})
"""Columns of every row; a hook's column of the same name would be dropped."""
STATE_COUNTERS = ("epoch", "iteration", "step", "samples", "phase_iteration")


class HookCheckFailed(AssertionError):
    """A hook breaks a promise of hooks."""


class CheckFailure(BaseException):
    """A failed check. No part of the loop mistakes it for an error of the hook; ranks send it to each other."""

    def __init__(self, check: str, what: str, to_do: str) -> None:
        super().__init__(check, what, to_do)
        self.check, self.what, self.to_do = check, what, to_do

    def text(self, hook: str, fields: str = "", loop: str = "") -> str:
        """Format the failure for the author of the hook."""
        lines = {"fields": fields, "loop": loop, "seen": self.what, "to do": self.to_do}
        details = "\n".join(f"  {label + ':':8}{line}" for label, line in lines.items() if line)
        return f"{hook} fails the check '{self.check}'\n{details}"


class DeviceReads(TorchFunctionMode):
    """Calls `report` with a function's name when a value is read that would be on a device, though all runs on the
    CPU."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report
        self._on_host = WeakIdKeyDictionary()
        self._inspected = WeakIdKeyDictionary()
        """Tensors whose device the hook has looked at: it knows the cost of reading them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [leaf for leaf in tree_leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]
        on_host = all(tensor in self._on_host for tensor in tensors)
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
            self._inspected[args[0]] = True
        is_known = on_host or any(tensor in self._inspected for tensor in tensors)
        if not is_known and (name in READS or (name == "__getitem__" and _has_mask(args[1]))):
            self._report("indexing by a mask" if name == "__getitem__" else name.strip("_"))
        result = func(*args, **kwargs)
        if on_host and name != "to" and kwargs.get("device") is None and (tensors or name in FACTORIES):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._on_host[leaf] = True
        return result


def _has_mask(index: Any) -> bool:
    leaves = (leaf for leaf in tree_leaves(index) if isinstance(leaf, Tensor))
    return any(not leaf.dtype.is_floating_point and leaf.dtype.itemsize == 1 for leaf in leaves)


class Collectives(TorchDispatchMode):
    """Calls `report` with the name of each collective before it starts."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no types
        self._report = report

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self._report(func.name().partition("::")[2].strip("_"))
        return func(*args, **(kwargs or {}))


def _cudnn(name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(torch.backends.cudnn, name), lambda value: setattr(torch.backends.cudnn, name, value)


_TORCH: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, torch.set_default_device),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic_debug_mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "detect_anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "flush_denormal": (
        lambda: float(torch.full((), 1e-40, dtype=torch.float32, device="cpu") * 2) == 0,
        torch.set_flush_denormal,
    ),
    **{f"backends.cudnn.{name}": _cudnn(name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")},
}
"""Settings of the process: how to get and how to set each."""


class SharedState:
    """A copy of what training and all hooks share, which a hook that observes must not change."""

    def __init__(self, state: State) -> None:
        self._torch = {name: get() for name, (get, _) in _TORCH.items()}
        self._random = storable_random_state()
        self._loop = {
            "state.batch": copied(state.batch),
            "state.output": copied(state.output),
            "state.loss": copied(state.loss),
            "state": {name: getattr(state, name) for name in STATE_COUNTERS},
            "requires_grad of parameter ": {name: leaf.requires_grad for name, leaf in state.module.named_parameters()},
            "training of module ": {name: module.training for name, module in state.module.named_modules()},
        }

    def change(self, now: SharedState) -> str:
        """Describe the first change, or return an empty text. Restores settings of torch, as other tests follow."""
        for name, value in self._torch.items():
            if now._torch[name] != value:
                _TORCH[name][1](value)
                return f"sets torch's {name} to {now._torch[name]}, where it was {value}"
        drawn = [kind for kind, state in self._random.items() if difference(now._random[kind], state)]
        if drawn:
            return f"draws random numbers of {' and '.join(drawn)}"
        changes = (difference(now._loop[place], value, place) for place, value in self._loop.items())
        return next((f"changes what training and other hooks share: {change}" for change in changes if change), "")


class Watch:
    """Observes a hook's calls in one loop; raises CheckFailure for undeclared behavior."""

    def __init__(self, hook: Hook, plan: Plan, *, collectives: bool, observes: bool) -> None:
        self._hook, self._observes = hook, observes
        self._event = ""
        self._modes: list[Any] = [] if collectives or hook.collective else [Collectives(self._on_collective)]
        self._device_reads = DeviceReads(self._on_read)
        self.early: dict[str, int] = {}
        """Columns of training, and the first iteration in which each was recorded without being due."""
        self.counts: dict[str, int] = {}
        """Columns of training, and the number of rows that have each."""
        for calls in plan.calls.values():
            for call in calls:
                if plan.hooks.get(call.name) is hook:
                    call.run = self._wrap(call, call.run)

    def _wrap(self, call: Call, run: Callable[..., None]) -> Callable[..., None]:
        within = call.event in WITHIN_ITERATION
        may_wait = call.event in type(self._hook).waits_for_device or call.pace is not None

        def watched(state: State, *arguments: Any) -> None:
            self._event = call.event
            before, shared = dict(state.row), SharedState(state) if self._observes else None
            with ExitStack() as stack:
                for mode in [*self._modes, *([self._device_reads] if within and not may_wait else [])]:
                    stack.enter_context(mode)
                run(state, *arguments)
            if shared and (change := shared.change(SharedState(state))):
                to_do = "leave it unchanged (torch.random.fork_rng(), a copy of a tensor), or remove `observes`"
                self._fail("observes", change, to_do)
            if within:
                new = {name: value for name, value in state.row.items() if before.get(name) is not value}
                self._check_columns(new, call, state)

        return watched

    def _check_columns(self, columns: Mapping[str, Any], call: Call, state: State) -> None:
        for name, value in columns.items():
            if name in LOOP_COLUMNS:
                self._fail(
                    "columns",
                    f"records '{name}', which the loop records itself: the hook's value is dropped",
                    f"choose another name, such as {self._hook.name}_{name}",
                )
            if isinstance(value, Tensor) and value.numel() != 1:
                self._fail(
                    "columns",
                    f"records '{name}', a tensor of shape {tuple(value.shape)}; a column holds one number",
                    "reduce it, or record one column per value",
                )
            if value is not None and not (isinstance(value, (int, float, str)) or hasattr(value, "item")):
                self._fail(
                    "columns",
                    f"records '{name}', a {type(value).__name__}; a column holds numbers, text or one-element tensors",
                    "record a number",
                )
            if state.phase == "train":
                self.counts[name] = self.counts.get(name, 0) + 1
                paces = paces_of(self._hook)
                if paces and not any(is_due_now(pace, state, counted=call.event == "on_step") for pace in paces):
                    self.early.setdefault(name, state.iteration + (call.event != "on_step"))

    def _on_read(self, function: str) -> None:
        self._fail(
            "device",
            f"waits for the device in every iteration ({function})",
            "record the tensor without reading it, or read it at an interval (@paced_by) or in on_phase_end; if every"
            " iteration needs the value, declare it: waits_for_device: ClassVar[frozenset[str]] ="
            f" frozenset({{'{self._event}'}})",
        )

    def _on_collective(self, collective: str) -> None:
        ranks = "" if str(self._hook.ranks) == "all" else f", and runs on {self._hook.ranks} only"
        self._fail(
            "collectives",
            f"calls a collective ({collective}) and does not declare it{ranks}: a rank without it would wait forever",
            "declare it: collective: ClassVar[bool] = True, with the default ranks",
        )

    def _fail(self, check: str, what: str, to_do: str) -> None:
        raise CheckFailure(check, f"{self._event} {what}", to_do)


def paces_of(hook: Hook) -> list[Any]:
    """Return a hook's intervals in steps or iterations: those that its events name, and `every`."""
    fields = {field for event in WITHIN_ITERATION if (field := getattr(getattr(type(hook), event), "paced_by", None))}
    every = getattr(hook, "every", None)
    paces = [getattr(hook, field) for field in fields] + [every] * isinstance(every, Interval)
    return [pace for pace in paces if isinstance(pace, int) or pace.unit == "steps"]
