"""The graph of a model, which TensorBoard draws."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hooks.model.eval_mode import evaluating, get_first_batch
from hooks.private_torch import tree_flatten, tree_leaves, tree_unflatten
from hooks.state import State

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Forward(nn.Module):
    """The task's forward pass of a batch whose tensors are passed one by one, as tracing needs it.

    The name of the class is that of the graph's outermost node.
    """

    def __init__(self, state: State, batch: Any) -> None:
        super().__init__()
        # A copy has no compiled code, which torch does not trace.
        self.model = deepcopy(state.module) if state.config.get("compile") else state.module
        self._forward = state.forward
        self._leaves, self._structure = tree_flatten(batch)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Put the tensors into the batch, and return the tensors of the output."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        output = self._forward(self.model, tree_unflatten(leaves, self._structure))
        return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def add_graph(writer: SummaryWriter, state: State) -> None:
    """Trace the forward pass of a training batch in eval mode and draw it; raises what the model
    raises."""
    # torch warns of each value that becomes a constant, and prints errors before it raises them.
    with (
        evaluating(state),
        warnings.catch_warnings(action="ignore"),
        redirect_stdout(io.StringIO()),
    ):
        traced = Forward(state, get_first_batch(state))
        writer.add_graph(traced, traced.tensors(), use_strict_trace=False)
