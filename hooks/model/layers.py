"""Layers of a model: their kinds, the innermost ones, and their outputs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hooks.private_torch import compiler_is_imported, tree_leaves

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
RunningNorm = BatchNorm | nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
"""Layers that can normalize with running statistics."""


def find_leaf_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules without children by name; a model without parts has the name of its
    type."""
    for name, module in model.named_modules():
        if not any(module.children()):
            yield name or type(module).__name__, module


def list_tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def run_uncompiled() -> AbstractContextManager[Any]:
    """Run compiled models uncompiled, because compiled code does not call module hooks."""
    if not compiler_is_imported():
        return nullcontext()
    context: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return context
