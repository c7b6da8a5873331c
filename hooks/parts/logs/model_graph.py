"""The model as a graph of operations, for TensorBoard."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hooks.parts.eval_mode import evaluating, one_batch
from hooks.private_torch import tree_flatten, tree_leaves, tree_unflatten
from hooks.state import State

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Forward(nn.Module):
    """The task's forward pass of a batch whose tensors are passed one by one: tracing knows no other kind of batch. Its
    name is that of the graph's outermost node."""

    def __init__(self, state: State, batch: Any) -> None:
        super().__init__()
        self.model = state.module
        self._forward = state.forward
        self._leaves, self._structure = tree_flatten(batch)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        passed = iter(tensors)
        leaves = [next(passed) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        output = self._forward(self.model, tree_unflatten(leaves, self._structure))
        return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def add_graph(writer: SummaryWriter, state: State) -> None:
    """Traces the forward pass of a real batch in eval mode and draws it; training does not notice.

    Raises whatever the model raises where it cannot be traced: control flow that depends on values is drawn as it went
    for this batch, and some models fail.
    """
    traced = Forward(state, one_batch(state))
    # torch warns of each value that tracing makes a constant, and prints what it raises, too.
    with evaluating(state), warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
        writer.add_graph(traced, traced.tensors(), use_strict_trace=False)
