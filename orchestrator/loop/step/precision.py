"""Precision: what the forward pass computes in, and how the loss is scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, bf16, or fp16 with a GradScaler of these arguments. Used in workers."""

    def __init__(self, name: str, device: torch.device, scaler: Mapping[str, Any] | None = None) -> None:
        self._dtype = _AUTOCAST.get(name)
        self._device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type, **(scaler or {})) if name == "fp16" else None

    def with_autocast(self, function: Callable[..., _T]) -> Callable[..., _T]:
        """Return the function under torch's autocast, or itself in fp32, because the context costs time."""
        if self._dtype is None:
            return function
        under_autocast: Callable[..., _T] = torch.autocast(self._device_type, dtype=self._dtype)(function)
        return under_autocast

    def autocast(self) -> AbstractContextManager[Any]:
        """Return torch's autocast; in fp32 a context that does nothing."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device_type, dtype=self._dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call `backward` on."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer with the scaler; returns False if a gradient overflowed.

        The host synchronizes with the device once, as the scaler itself does. Fused optimizers decide on the device, so
        for them the scale shows whether the step was skipped.
        """
        assert self.scaler is not None
        if optimizer.defaults.get("fused"):
            before = self.scaler.get_scale()
            self.scaler.step(optimizer)
            self.scaler.update()
            return self.scaler.get_scale() >= before
        steps: list[bool] = []
        hook = optimizer.register_step_post_hook(lambda *_: steps.append(True))
        try:
            self.scaler.step(optimizer)
            self.scaler.update()
        finally:
            hook.remove()
        return bool(steps)

    def skip(self) -> None:
        """Leave this step out, and keep the scaler's count in order."""
        if self.scaler:
            self.scaler.update()
