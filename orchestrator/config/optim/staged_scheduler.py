"""A scheduler made of several, each of which acts for a part of the run. Worker process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Stretch(NamedTuple):
    """The steps of a schedule after which one of its schedulers steps."""

    begin: int = 0
    end: int | None = None
    """The last of them, unless another scheduler begins there; None is none."""
    every: int = 1


class StagedLR(LRScheduler):
    """Schedulers that begin together at the run's beginning, or each where another ends: torch's ChainedScheduler and
    SequentialLR, with the same numbers, and a pace for each.

    Schedulers that begin together multiply. One that begins later starts from the optimizer's own rate. Between two of
    them the rate stays.
    """

    def __init__(self, optimizer: Optimizer, makers: Sequence[Callable[[], Any]], stretches: Sequence[Stretch]) -> None:
        rates = [
            group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"] for group in optimizer.param_groups
        ]
        # A scheduler sets the rate as it is made, and only those of the beginning are to.
        later = {index: makers[index]() for index, stretch in enumerate(stretches) if stretch.begin}
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        made = later | {index: makers[index]() for index, stretch in enumerate(stretches) if not stretch.begin}
        begins = {stretch.begin for stretch in stretches}
        self.optimizer, self.last_epoch = optimizer, 0
        self._schedulers = [made[index] for index in range(len(makers))]
        self._stretches = [
            one._replace(end=one.end - 1) if one.end is not None and one.end in begins else one for one in stretches
        ]
        self._last_lr = [group["lr"] for group in optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Steps the schedulers whose turn it is."""
        self.last_epoch += 1
        for scheduler, (begin, end, every) in zip(self._schedulers, self._stretches, strict=True):
            since = self.last_epoch - begin
            if begin and since == 0:
                with warnings.catch_warnings():
                    warnings.simplefilter(
                        "ignore"
                    )  # torch's own SequentialLR begins so, with what is deprecated for others
                    scheduler.step(0)
            elif since > 0 and (end is None or self.last_epoch <= end) and since % every == 0:
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
