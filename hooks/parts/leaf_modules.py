"""Watching the leaf modules of a model in a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hooks.private_torch import compiler_is_imported, tree_leaves


def leaf_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules without children, by name; a model that is one itself is called by its type."""
    for name, module in model.named_modules():
        if not any(module.children()):
            yield name or type(module).__name__, module


def tensors(values: Any) -> list[Tensor]:
    """The tensors in anything nested, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def uncompiled() -> AbstractContextManager[Any]:
    """Has compiled models run uncompiled meanwhile: what is compiled already does not call module hooks."""
    if not compiler_is_imported():
        return nullcontext()
    context: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return context
