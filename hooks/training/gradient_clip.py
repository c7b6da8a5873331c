"""Clips gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from hooks.hook import Hook, Priority
from hooks.state import State


@dataclass
class GradientClip(Hook):
    """Clips the global gradient norm, or every element, and records the norm there was before.

    Acts once per optimizer step, on accumulated and unscaled gradients. Every rank does the same; no communication,
    no synchronization with the device. Records grad_norm. Source: MMEngine OptimWrapper, VISSL GradClipHook.
    """

    max_norm: Annotated[float, Gt(0)] = 1.0
    """Largest allowed norm over all parameters."""
    norm_type: Annotated[float, Gt(0)] = 2.0
    """Which p-norm; infinity is the largest absolute element."""
    max_value: Annotated[float, Gt(0)] | None = None
    """Where given, clips every element to at most this size, instead of the norm."""

    priority: ClassVar[Priority] = Priority.HIGH

    def on_gradients(self, state: State) -> None:
        parameters = [parameter for parameter in state.module.parameters() if parameter.grad is not None]
        if self.norm_type == 2.0:
            norm = state.gradient_norm()
        else:
            norm = get_total_norm([p.grad for p in parameters if p.grad is not None], self.norm_type)
        state.record(grad_norm=norm)
        if self.max_value is None:
            clip_grads_with_norm_(parameters, self.max_norm, norm)
        else:
            clip_grad_value_(parameters, self.max_value)
        state.forget_gradients()
