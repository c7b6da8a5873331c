"""Watched calls of a hook: device reads, collectives, columns, and shared state; and differences of
nested values."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.distributed import sharded_tensors as shards
from hooks.hook import WITHIN_ITERATION, Hook
from hooks.plan import Call, Plan
from hooks.private_torch import tree_leaves
from hooks.state import State
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.rows.recorder import make_columns
from orchestrator.loop.step.collective_calls import Collectives
from orchestrator.randomness import random_state
from orchestrator.units import get_unit


def copy_tree(tree: Any) -> Any:
    """Copy nested containers. A sharded tensor becomes a copy of this rank's shard."""
    tensors = {
        id(tensor): shards.local(tensor).detach().clone()
        for tensor in placeholders.tensors_in(tree)
    }
    return deepcopy(tree, tensors)


def find_difference(
    actual: Any, expected: Any, path: str = "", varies: Collection[str] = ()
) -> str:
    """Return the path of the first difference of two trees, bit for bit, with both values; empty if
    they are equal.

    Skips the names in `varies`, and names with a unit of time, speed or memory.
    """
    if type(actual) is not type(expected):
        return f"{path} is a {type(actual).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, dict):
        for key in {**expected, **actual}:
            if (
                key in varies
                or get_unit(str(key))
                or str(key).endswith("_seconds")
                or key == "seconds"
            ):
                continue
            if key not in actual or key not in expected:
                return f"{path}[{key!r}] is {'missing' if key not in actual else 'there, and should not be'}"
            if text := find_difference(actual[key], expected[key], f"{path}[{key!r}]", varies):
                return text
        return ""
    if isinstance(expected, (list, tuple, deque)):
        if len(actual) != len(expected):
            return f"{path} has {len(actual)} entries, not {len(expected)}"
        pairs = enumerate(zip(actual, expected, strict=True))
        return next(
            filter(
                None, (find_difference(*pair, f"{path}[{index}]", varies) for index, pair in pairs)
            ),
            "",
        )
    if isinstance(expected, Tensor):
        is_same = actual.dtype == expected.dtype and actual.shape == expected.shape
        is_equal = is_same and torch.equal(actual.nan_to_num(), expected.nan_to_num())
        return (
            ""
            if is_equal
            else f"{path} is {_format_tensor(actual)}, not {_format_tensor(expected)}"
        )
    is_equal = (
        actual is expected or actual == expected or (actual != actual and expected != expected)
    )
    return "" if is_equal else f"{path} is {actual!r}, not {expected!r}"


def _format_tensor(tensor: Tensor) -> str:
    values = tensor.flatten()[:4].tolist()
    return f"{tensor.dtype} {tuple(tensor.shape)} {values}{'...' if tensor.numel() > 4 else ''}"


READS = frozenset(
    "item tolist numpy cpu __bool__ __float__ __int__ __index__ __array__ is_nonzero equal allclose nonzero argwhere"
    " masked_select unique unique_consecutive bincount new_tensor".split()
)
"""Functions whose result the host must have before it continues, or that copy from its memory."""
FACTORIES = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty eye arange linspace rand randn randint randperm".split()
)
"""Functions that make a tensor on the host if they get no device: reading it waits for nothing."""


class HookCheckFailed(AssertionError):
    """A hook breaks a promise of hooks."""


class CheckFailure(BaseException):
    """A failed check. No part of the loop mistakes it for an error of the hook; ranks send it to
    each other."""

    def __init__(self, check: str, what: str, to_do: str) -> None:
        super().__init__(check, what, to_do)
        self.check, self.what, self.to_do = check, what, to_do

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
        tensors = [
            leaf for leaf in tree_leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)
        ]
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.device:
            self._inspected[args[0]] = True
        on_host = all(tensor in self._on_host for tensor in tensors)
        is_known = on_host or any(tensor in self._inspected for tensor in tensors)
        is_masked = name == "__getitem__" and any(
            index.dtype in (torch.bool, torch.uint8) for index in tensors[1:]
        )
        if not is_known and (name in READS or is_masked):
            self._report("indexing by a mask" if is_masked else name.strip("_"))
        result = func(*args, **kwargs)
        if (
            on_host
            and name != "to"
            and kwargs.get("device") is None
            and (tensors or name in FACTORIES)
        ):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._on_host[leaf] = True
        return result


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
    run, is_within_iteration = call.run, call.event in WITHIN_ITERATION
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
        now = copy_shared_state(state) if observes else {}
        if change := next(
            filter(None, (find_difference(now[name], shared[name], name) for name in shared)), ""
        ):
            to_do = "leave it unchanged (torch.random.fork_rng(), a copy of a tensor), or remove `observes`"
            raise CheckFailure(
                "observes",
                f"{call.event} changes what training and other hooks share: {change}",
                to_do,
            )
        if is_within_iteration:
            new = {
                name: value for name, value in state.row.items() if columns.get(name) is not value
            }
            try:
                make_columns([new], ())
            except ValueError as error:
                to_do = "reduce it to a number, or record one column per value"
                raise CheckFailure(
                    "columns", f"{call.event} records what is no column: {error}", to_do
                ) from None

    return watched


def _fail_read(event: str, function: str) -> NoReturn:
    to_do = (
        "record the tensor without reading it, or read it at an interval (@at_interval) or in on_phase_end; if every"
        f" iteration needs the value, declare it: waits_for_device: ClassVar[frozenset[str]] = frozenset({{'{event}'}})"
    )
    raise CheckFailure(
        "device", f"{event} waits for the device in every iteration ({function})", to_do
    )


def _fail_collective(event: str, collective: str, arguments: Sequence[Any]) -> NoReturn:
    what = f"{event} calls a collective ({collective}) and does not declare it: a rank without it would wait forever"
    raise CheckFailure(
        "collectives", what, "declare it: collective: ClassVar[bool] = True, with the default ranks"
    )
