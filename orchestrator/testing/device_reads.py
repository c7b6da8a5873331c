"""Reads of values that would be on a device outside tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from hooks.private_torch import tree_leaves

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
            what = "indexing by a mask" if is_masked else name.strip("_")
            self._report(what)

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
