"""Watched calls of a hook: device reads, collectives, columns, and shared state."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.event_calls import Call
from hooks.hook import WITHIN_ITERATION, Hook
from hooks.plan import Plan
from hooks.private_torch import tree_leaves
from hooks.state import State
from orchestrator.disk.rows.arrays import make_columns
from orchestrator.loop.step.collective_calls import Collectives
from orchestrator.randomness import random_state
from orchestrator.testing.differences import copy_tree, find_difference

READS = frozenset(
    (
        "item tolist numpy cpu __bool__ __float__ __int__ __index__ __array__ is_nonzero equal "
        "allclose nonzero argwhere masked_select unique unique_consecutive bincount new_tensor"
    ).split()
)
"""Functions whose result the host must have before it continues, or that copy from its memory."""
FACTORIES = frozenset(
    (
        "tensor as_tensor from_numpy zeros ones full empty eye arange linspace "
        "rand randn randint randperm"
    ).split()
)
"""Functions that make a tensor on the host if they get no device: reading it waits for nothing."""


class HookCheckFailed(AssertionError):
    """A hook breaks a promise of hooks."""


class CheckFailure(BaseException):
    """A failed check. No part of the loop mistakes it for an error of the hook; ranks send it to
    each other."""

    def __init__(self, check: str, what: str, to_do: str) -> None:
        super().__init__(check, what, to_do)
        self.check = check
        self.what = what
        self.to_do = to_do

    def text(self, hook: str, fields: str = "", loop: str = "") -> str:
        """Format the failure for the author of the hook."""
        lines = {"fields": fields, "loop": loop, "seen": self.what, "to do": self.to_do}
        details = "\n".join(f"  {label + ':':8}{line}" for label, line in lines.items() if line)
        return f"{hook} fails the check '{self.check}'\n{details}"


class DeviceReads(TorchFunctionMode):
    """Mode that calls `report` with a function's name if it reads a value that would be on a device
    outside tests."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report
        self._on_host = WeakIdKeyDictionary()
        self._inspected = WeakIdKeyDictionary()
        """Tensors whose device the hook has looked at: it knows the cost of reading them."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = _select_tensors([*args, *kwargs.values()])
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
            self._inspected[args[0]] = True

        on_host = all(tensor in self._on_host for tensor in tensors)
        is_known = on_host or any(tensor in self._inspected for tensor in tensors)
        is_masked = name == "__getitem__" and _has_mask(tensors[1:])
        if not is_known and (name in READS or is_masked):
            self._report("indexing by a mask" if is_masked else name.strip("_"))

        result = func(*args, **kwargs)
        may_move = name == "to" or kwargs.get("device") is not None
        makes_on_host = bool(tensors) or name in FACTORIES
        if on_host and makes_on_host and not may_move:
            for tensor in _select_tensors(result):
                self._on_host[tensor] = True
        return result


def _select_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _has_mask(indices: Sequence[Tensor]) -> bool:
    return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def copy_shared_state(state: State) -> dict[str, Any]:
    """Return a copy of what training and all hooks share, which a hook that observes must not
    change."""
    return {
        "random numbers of ": random_state(),
        "state.batch": copy_tree(state.batch),
        "state.output": copy_tree(state.output),
        "state.loss": copy_tree(state.loss),
        "requires_grad of parameter ": {
            name: leaf.requires_grad for name, leaf in state.module.named_parameters()
        },
        "training of module ": {
            name: module.training for name, module in state.module.named_modules()
        },
    }


def watch_calls(hook: Hook, plan: Plan, *, collectives: bool, observes: bool) -> None:
    """Wrap a hook's calls of a plan: they raise CheckFailure for undeclared behavior.

    `collectives` allows these, and `observes` forbids changes of shared state.
    """
    for calls in plan.calls.values():
        for call in calls:
            if plan.hooks.get(call.name) is hook:
                call.run = _wrap_call(hook, call, collectives=collectives, observes=observes)


def _wrap_call(hook: Hook, call: Call, *, collectives: bool, observes: bool) -> Callable[..., None]:
    run = call.run
    is_within_iteration = call.event in WITHIN_ITERATION
    may_wait = call.event in type(hook).waits_for_device or call.interval is not None

    def watched(state: State, *arguments: Any) -> None:
        columns = dict(state.row)
        shared = copy_shared_state(state) if observes else {}
        with ExitStack() as stack:
            if not (collectives or hook.collective):
                stack.enter_context(Collectives(partial(_fail_collective, call.event)))
            if is_within_iteration and not may_wait:
                stack.enter_context(DeviceReads(partial(_fail_read, call.event)))
            run(state, *arguments)

        if observes:
            _check_shared_state(call.event, copy_shared_state(state), shared)
        if is_within_iteration:
            _check_columns(call.event, state.row, columns)

    return watched


def _check_shared_state(event: str, actual: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    for name, value in before.items():
        if change := find_difference(actual[name], value, name):
            raise CheckFailure(
                "observes",
                f"{event} changes what training and other hooks share: {change}",
                "leave it unchanged (torch.random.fork_rng(), a copy of a tensor), "
                "or remove `observes`",
            )


def _check_columns(event: str, row: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    new = {name: value for name, value in row.items() if before.get(name) is not value}
    try:
        make_columns([new], ())
    except ValueError as error:
        raise CheckFailure(
            "columns",
            f"{event} records a value that cannot be a column: {error}",
            "reduce it to a number, or record one column per value",
        ) from None


def _fail_read(event: str, function: str) -> NoReturn:
    raise CheckFailure(
        "device",
        f"{event} waits for the device in every iteration ({function})",
        "record the tensor without reading it, or read it at an interval (@at_interval) or in "
        "on_phase_end; if every iteration needs the value, declare it: "
        f"waits_for_device: ClassVar[frozenset[str]] = frozenset({{'{event}'}})",
    )


def _fail_collective(event: str, collective: str, arguments: Sequence[Any]) -> NoReturn:
    raise CheckFailure(
        "collectives",
        f"{event} calls a collective ({collective}) and does not declare it: "
        "a rank without it would wait forever",
        "declare it: collective: ClassVar[bool] = True, with the default ranks",
    )
