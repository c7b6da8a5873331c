"""The learning rate over a run: one scheduler, after a warm-up, or several, each in its phase.

`Schedule.make` counts the phases in steps of the schedule, before and after there is data.
`Schedule.build` makes torch's schedulers of them, which a hook steps in each worker.
"""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hooks.position import Position
from orchestrator.errors import ConfigError
from orchestrator.experiment.optim.lr_phase import LRPhase
from orchestrator.experiment.optim.optimization import Optimization
from orchestrator.experiment.optim.scheduler_list import make_list_phases
from orchestrator.experiment.optim.timeline import Timeline
from orchestrator.experiment.optim.warm_up import make_single_phases
from orchestrator.task import Task


@dataclass(frozen=True)
class Schedule:
    """The rates of an optimizer over the run: the phases of its schedulers, none without one."""

    phases: tuple[LRPhase, ...]
    timeline: Timeline

    @classmethod
    def make(cls, optimization: Optimization, task: type[Task], timeline: Timeline) -> Self:
        """Return the schedule of an optimizer, with its lengths as far as they are known.

        Raises ConfigError. Lengths stay as written where a custom hook steps it.
        """
        scheduler = optimization.scheduler
        if scheduler is None:
            return cls((), timeline)
        path = optimization.scheduler_path
        if isinstance(scheduler, list):
            phases = make_list_phases(scheduler, task, timeline, path)
        else:
            phases = make_single_phases(scheduler, task, timeline, path)
        return cls(tuple(phases), timeline)

    def record(self) -> dict[str, Any] | None:
        """Return plain data for a checkpoint: whatever decides the rates."""
        if not self.phases:
            return None
        every = self.timeline.every
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "every": None if every is None else str(every),
            "monitor": self.timeline.monitor,
        }

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, if there is one and the task's method returns it.

        Raises ConfigError.
        """
        if not self.phases:
            return None
        first = self.phases[0]
        takes_every_step = (first.begin, first.last, first.every) == (0, None, 1)
        if len(self.phases) == 1 and takes_every_step:
            return first.build(task, optimizer)
        return PhasedLR(optimizer, self.phases, task)

    def replay(self, scheduler: Any, position: Position, default: int) -> None:
        """Advance a new scheduler to a position, as if the optimizer had always trained with it.

        A scheduler that steps on a metric starts over. A scheduler that a user's hook steps, at
        whatever times, takes `default` steps.
        """
        every = self.timeline.every
        if scheduler is None or self.timeline.monitor:
            return
        count = default
        if every is not None:
            count = (position.step if every.unit == "steps" else position.epoch) // every.count
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            for _ in range(count):
                scheduler.step()


class PhasedLR(LRScheduler):
    """Schedulers that begin together, or each where another ends; used in workers.

    Gives the numbers of torch's ChainedScheduler and SequentialLR, with an interval for each
    scheduler. Schedulers that begin together multiply. One that begins later starts from the
    optimizer's own rate, and has no effect on the momentum before. Between two the rate stays.
    """

    def __init__(self, optimizer: Optimizer, phases: Sequence[LRPhase], task: Task) -> None:
        own_values = deepcopy([_select_scheduled(group) for group in optimizer.param_groups])
        schedulers = [_build(phase, task, optimizer) if phase.begin else None for phase in phases]
        # Creating a scheduler sets the rate, and perhaps the momentum, which only those that begin
        # with the run may do.
        for group, values in zip(optimizer.param_groups, own_values, strict=True):
            group.update(values)
        for index, phase in enumerate(phases):
            if not phase.begin:
                schedulers[index] = _build(phase, task, optimizer)

        self.optimizer = optimizer
        self.last_epoch = 0
        self._phases = phases
        self._schedulers: list[Any] = schedulers

    def get_last_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Step the schedulers that are in their phase."""
        self.last_epoch += 1
        for scheduler, phase in zip(self._schedulers, self._phases, strict=True):
            since = self.last_epoch - phase.begin
            is_over = phase.last is not None and self.last_epoch > phase.last
            if phase.begin and since == 0:
                with warnings.catch_warnings():
                    # torch's SequentialLR does this too; the argument is deprecated for other
                    # callers
                    warnings.simplefilter("ignore")
                    scheduler.step(0)
            elif since > 0 and not is_over and since % phase.every == 0:
                scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self.last_epoch,
            "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


def _select_scheduled(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an optimizer's group that schedulers set."""
    return {key: group[key] for key in ("lr", "momentum", "betas") if key in group}


def _build(phase: LRPhase, task: Task, optimizer: Optimizer) -> Any:
    built = phase.build(task, optimizer)
    if built is None:
        method = f"{type(task).__name__}.scheduler()"
        raise ConfigError.at(
            phase.path,
            f"needs a scheduler beside a warm-up or in a list, but {method} returned None",
        )
    return built
