"""Anomaly detection: finds the operation whose gradient is NaN."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch

from hooks.hook import Cleanup, Priority
from hooks.state import State


@dataclass
class AnomalyDetection(Cleanup):
    """Find the operation that makes a NaN, with torch's anomaly detection: its backward pass fails
    and names it.

    The error is torch's RuntimeError, such as "Function 'LogBackward0' returned nan values in its
    0th output". A warning before it shows the lines of the forward pass that called the operation.
    Slow, for debugging: every backward pass waits for the device. The hook restores the setting it
    found, also after a failure. Source: iMIX AutogradAnomalyDetectHook.
    """

    check_nan: bool = True
    """Failure at the first NaN; if false, only an explanation when a backward pass fails for
    another reason."""

    priority: ClassVar[Priority] = Priority.HIGHEST

    def __post_init__(self) -> None:
        self._setting = ExitStack()

    def on_start(self, state: State) -> None:
        self._setting.enter_context(
            torch.autograd.set_detect_anomaly(True, check_nan=self.check_nan)
        )

    def close(self) -> None:
        self._setting.close()
