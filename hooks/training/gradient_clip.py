"""Gradient clipping."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor

from hooks.hook import Hook, Priority
from hooks.needs import Needs
from hooks.parameter_names import join_names
from hooks.private_torch import foreach_clamp_max_, foreach_clamp_min_, foreach_mul_
from hooks.setup import CHANGES_GRADIENTS, Setup
from hooks.state import State

_EPSILON = 1e-6
"""The epsilon of torch.nn.utils.clip_grad_norm_."""


@dataclass
class GradientClip(Hook):
    """Clip gradients by their global norm or by element.

        gradient_clip: {max_norm: 1.0}

    Acts once per optimizer step, on accumulated and unscaled gradients, with the numbers of torch's
    `clip_grad_norm_` bit for bit. It does not synchronize. With `strategy: fsdp` it communicates
    once, a number for each parameter.

    Columns:
        * `grad_norm`: Norm of all gradients before clipping.

    Source: MMEngine OptimWrapper, VISSL GradClipHook.
    """

    max_norm: Annotated[float, Gt(0), Needs("max_value", None)] = 1.0
    """Maximum norm of the gradients of all parameters that the optimizer trains."""
    norm_type: Annotated[float, Gt(0)] = 2.0
    """Order of the norm; infinity means the largest absolute value."""
    max_value: Annotated[float, Gt(0)] | None = None
    """Maximum absolute value of an element; if set, elements are clipped instead of the norm."""

    priority: ClassVar[Priority] = Priority.HIGH
    mutable: ClassVar[frozenset[str]] = frozenset({"max_norm", "max_value"})

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(closure=CHANGES_GRADIENTS)

    def on_gradients(self, state: State) -> None:
        norm = state.gradient_norm(self.norm_type)
        state.record(grad_norm=norm)
        if self.max_value is None and self._is_known_to_be_within(norm):
            return
        gradients = state.gradients()
        if not gradients:
            return
        if self.max_value is None:
            foreach_mul_(gradients, (self.max_norm / (norm + _EPSILON)).clamp(max=1.0))
        else:
            _clamp(state, gradients, self.max_value)
        state.forget_gradients()

    def _is_known_to_be_within(self, norm: Tensor) -> bool:
        """Return whether a norm needs no scaling, as in most steps; always False on a GPU, where
        reading it would synchronize."""
        return norm.device.type == "cpu" and norm.item() < self.max_norm * 0.999 - _EPSILON


def _clamp(state: State, gradients: list[Tensor], max_value: float) -> None:
    try:
        foreach_clamp_min_(gradients, -max_value)
    except NotImplementedError:
        names = state.list_sparse_gradients()
        if not names:
            raise
        raise TypeError(
            f"the gradient of {join_names(names)} is sparse, and torch cannot clamp sparse gradients."
            " Build the layer with sparse=False, or clip by the norm"
        ) from None
    foreach_clamp_max_(gradients, max_value)
