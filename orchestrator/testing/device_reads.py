"""Reads of values that would be on a device outside tests."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.private_torch import tree_leaves

READS = frozenset(
    (
        "item tolist numpy cpu __bool__ __float__ __int__ __index__ __complex__ __array__ "
        "__contains__ __format__ __repr__ is_nonzero equal allclose nonzero argwhere masked_select "
        "unique unique_consecutive bincount new_tensor"
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
        read = None if is_known else self._describe_read(name, args, kwargs)
        if name == "_parse_to" and _waits_for_copy(("", *args), kwargs):
            read = "to the CPU"  # of a module
        if read:
            self._report(read)

        result = func(*args, **kwargs)
        moves_to_host = name == "to" and _names_cpu(args, kwargs)
        may_move = not moves_to_host and (name == "to" or kwargs.get("device") is not None)
        makes_on_host = bool(tensors) or name in FACTORIES
        if on_host and makes_on_host and not may_move:
            for tensor in _select_tensors(result):
                self._on_host[tensor] = True
        return result

    def _describe_read(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str | None:
        """Return what the call reads, in words; None if it does not wait for the device."""
        if name in READS:
            return name.strip("_")
        if name == "to" and _waits_for_copy(args, kwargs):
            return "to the CPU"
        if name == "__getitem__" and _has_mask(args[1]):
            return "indexing by a mask"
        if name == "__setitem__" and _has_mask(args[1]) and not self._is_fill_value(args[2]):
            return "indexing by a mask"
        if name == "where" and len(args) + len(kwargs) == 1:
            return "where of a mask"
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            repeats = kwargs.get("repeats", args[min(1, len(args) - 1)] if args else None)
            return name if isinstance(repeats, Tensor) else None
        return None

    def _is_fill_value(self, value: Any) -> bool:
        """Return whether the host knows a single value, which fills places that nobody counts."""
        return not isinstance(value, Tensor) or (value.numel() == 1 and value in self._on_host)


def _select_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _waits_for_copy(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether `to(device, dtype, non_blocking)` waits for a copy to the CPU."""
    is_non_blocking = kwargs.get("non_blocking", args[3] if len(args) > 3 else False)
    return _names_cpu(args, kwargs) and not is_non_blocking


def _names_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the CPU is named by a string in the code. A `torch.device`, and the string that
    torch makes of it, may be that of the run, which is the CPU only in tests."""
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    if not isinstance(target, str):
        return False
    # Python interns a literal, and torch's string is new.
    return target is sys.intern("cpu") or target.startswith("cpu:")


def _has_mask(index: Any) -> bool:
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _select_tensors(index))
