"""A scheduler made of several, each of which acts for a part of the run. Worker process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from orchestrator.config.optim.scheduler import LRPhase


class StagedLR(LRScheduler):
    """Schedulers that begin together at the run's beginning, or each where another ends: torch's ChainedScheduler and
    SequentialLR, with the same numbers, and a pace for each.

    Schedulers that begin together multiply. One that begins later starts from the optimizer's own rate. Between two of
    them the rate stays.
    """

    def __init__(self, optimizer: Optimizer, phases: Sequence[LRPhase], make: Callable[[LRPhase], Any]) -> None:
        rates = [rate.clone() if isinstance(rate := group["lr"], Tensor) else rate for group in optimizer.param_groups]
        # A scheduler sets the rate as it is made, and only those of the beginning are to.
        made = {index: make(phase) for index, phase in enumerate(phases) if phase.begin}
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        made |= {index: make(phase) for index, phase in enumerate(phases) if not phase.begin}
        self.optimizer, self.last_epoch, self._phases = optimizer, 0, phases
        self._schedulers = [made[index] for index in range(len(phases))]
        self._begins = {phase.begin for phase in phases}
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers whose turn it is."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            is_over = phase.end is not None and self.last_epoch + (phase.end in self._begins) > phase.end
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's own SequentialLR begins so, with what is deprecated for others
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not is_over and since % phase.every == 0:
                scheduler.step()
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self.last_epoch,
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)
