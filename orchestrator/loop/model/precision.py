"""The precision in which a model computes, and its loss scaler. Used in workers."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, bf16, or fp16 with a GradScaler that gets the arguments `scaler`."""

    def __init__(
        self, name: str, device: torch.device, scaler: Mapping[str, Any] | None = None
    ) -> None:
        self._dtype = _AUTOCAST.get(name)
        self._device_type = device.type
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
            self.scaler = torch.amp.GradScaler(device.type, **(scaler or {}))

    def with_autocast(self, function: Callable[..., _T]) -> Callable[..., _T]:
        """Return the function under torch's autocast; in fp32 return it unchanged, because the
        context costs time."""
        if self._dtype is None:
            return function
        autocast = torch.autocast(self._device_type, dtype=self._dtype)
        under_autocast: Callable[..., _T] = autocast(function)
        return under_autocast

    def autocast(self) -> AbstractContextManager[Any]:
        """Return torch's autocast; in fp32 a context that does nothing."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device_type, dtype=self._dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss, on which to call `backward`."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer with the scaler; returns False if a gradient overflowed.

        This synchronizes once, as the scaler itself does. A fused optimizer decides on the device
        whether to skip the step; a lower scale then shows that it did.
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
        """Skip this step, but update the scaler, which counts steps."""
        if self.scaler:
            self.scaler.update()
