"""Precision: what the forward pass computes in, and how the loss is scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, bf16 or fp16 (with a GradScaler, of these arguments). Worker process."""

    def __init__(self, name: str, device: torch.device, scaler: Mapping[str, Any] | None = None) -> None:
        self._dtype = _AUTOCAST.get(name)
        self._device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type, **(scaler or {})) if name == "fp16" else None

    def autocasting(self, function: Callable[..., _T]) -> Callable[..., _T]:
        """The function under torch's autocast; itself where that changes nothing, as the context costs more than it
        looks."""
        if self._dtype is None:
            return function
        under_autocast: Callable[..., _T] = torch.autocast(self._device_type, dtype=self._dtype)(function)
        return under_autocast

    def autocast(self) -> AbstractContextManager[Any]:
        """torch's autocast, for what is no function; nothing where that changes nothing."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device_type, dtype=self._dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as it is to be differentiated: scaled where fp16 needs it."""
        return self.scaler.scale(loss) if self.scaler else loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the gradients their true size."""
        if self.scaler:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Steps the optimizer; False where the scaler left it out because a gradient overflowed. With a scaler the host
        waits for the device once, as the scaler itself does to decide; the fused optimizers decide on the device, and
        are asked twice."""
        if self.scaler is None:
            optimizer.step()
            return True
        if optimizer.defaults.get("fused"):
            before = self.scaler.get_scale()
            self._step_scaled(optimizer)
            return self.scaler.get_scale() >= before
        made: list[bool] = []
        noting = optimizer.register_step_post_hook(lambda *_: made.append(True))
        try:
            self._step_scaled(optimizer)
        finally:
            noting.remove()
        return bool(made)

    def _step_scaled(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.scaler is not None
        self.scaler.step(optimizer)
        self.scaler.update()

    def skip(self) -> None:
        """Leaves this step out, keeping the scaler's count in order."""
        if self.scaler:
            self.scaler.update()
