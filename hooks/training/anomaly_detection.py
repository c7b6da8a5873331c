"""Finds the operation whose gradient is not a number."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch

from hooks.hook import Hook, Priority
from hooks.parts.cleanup import Cleanup
from hooks.state import State


@dataclass
class AnomalyDetection(Cleanup, Hook):
    """Runs training under torch's anomaly detection: a backward pass that makes a NaN fails and names the operation.

    The error is torch's RuntimeError, such as "Function 'LogBackward0' returned nan values in its 0th output"; a
    warning before it shows the lines of the forward pass that called the operation, through the modules. For looking
    for a fault: every backward pass is slower and waits for the device. Every rank for itself. The setting is the
    process's own; the hook puts back the one it found, also when the run fails. Source: iMIX
    AutogradAnomalyDetectHook, which leaves it on.
    """

    check_nan: bool = True
    """Whether a NaN is an error; without it only a backward pass that fails anyway is explained."""

    priority: ClassVar[Priority] = Priority.HIGHEST

    def __post_init__(self) -> None:
        self._setting = ExitStack()

    def on_start(self, state: State) -> None:
        self._setting.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=self.check_nan))

    def close(self) -> None:
        self._setting.close()
