"""The phases of a learning rate, and the scheduler that steps them in each worker."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from orchestrator.experiment.optim.learning_rate.scheduler import build_scheduler, check_scheduler
from orchestrator.task import Task


@dataclass(frozen=True)
class LRPhase:
    """A scheduler, its arguments in its own steps, and its part of the schedule."""

    path: str
    kind: str
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    end: int | None = None
    """The last step of the schedule that it may take, unless another scheduler begins there; None
    for no end."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    def check(self, task: type[Task]) -> None:
        """Check the scheduler before there is an optimizer, or raise ConfigError."""
        check_scheduler(self.kind, self.arguments, task, self.path)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        return build_scheduler(self.kind, self.arguments, task, optimizer, self.path)


class PhasedLR(LRScheduler):
    """Schedulers that begin together, or each where another ends; used in workers.

    Gives the numbers of torch's ChainedScheduler and SequentialLR, with an interval for each
    scheduler. Schedulers that begin together multiply. One that begins later starts from the
    optimizer's own rate. Between two the rate stays.
    """

    def __init__(
        self, optimizer: Optimizer, phases: Sequence[LRPhase], build: Callable[[LRPhase], Any]
    ) -> None:
        # Creating a scheduler sets the rate, which only the first ones may do: create them last.
        rates = _copy_rates(optimizer)
        later = {index: build(phase) for index, phase in enumerate(phases) if phase.begin}
        _set_rates(optimizer, rates)
        first = {index: build(phase) for index, phase in enumerate(phases) if not phase.begin}
        schedulers = {**later, **first}

        self.optimizer = optimizer
        self.last_epoch = 0
        self._phases = phases
        self._schedulers = [schedulers[index] for index in range(len(phases))]
        self._begins = {phase.begin for phase in phases}

    def get_last_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers that are in their phase."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's SequentialLR does this too; the argument is deprecated for other
                    # callers
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not self._has_ended(phase) and since % phase.every == 0:
                scheduler.step()

    def _has_ended(self, phase: LRPhase) -> bool:
        if phase.end is None:
            return False
        is_followed = phase.end in self._begins  # by a scheduler that takes the last step
        return self.last_epoch + is_followed > phase.end

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self.last_epoch,
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


def _copy_rates(optimizer: Optimizer) -> list[Any]:
    rates = [group["lr"] for group in optimizer.param_groups]
    return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]


def _set_rates(optimizer: Optimizer, rates: Sequence[Any]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"] = rate
