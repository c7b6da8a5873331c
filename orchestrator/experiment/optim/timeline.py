"""The length of a run, counted in the steps of its schedulers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from hooks import Hook, Interval, ParamScheduler


def find_stepping_hook(hooks: Mapping[str, Hook]) -> ParamScheduler | None:
    """Return the hook that steps the schedulers; None if there is none, or a custom one does."""
    return next((hook for hook in hooks.values() if isinstance(hook, ParamScheduler)), None)


@dataclass(frozen=True)
class Timeline:
    """The length of a run, and when its schedulers step."""

    length: Interval
    every: Interval | None
    """Interval of the schedulers' steps; None where a custom hook steps them."""
    monitor: str | None = None
    """Metric that steps them instead."""
    steps_per_epoch: int | None = None
    """Optimizer steps in an epoch; None before there is data."""

    @classmethod
    def from_hooks(
        cls,
        hooks: Mapping[str, Hook],
        epochs: int | None,
        steps: int | None,
        steps_per_epoch: int | None = None,
    ) -> Self:
        """Return the timeline of a run with these hooks, and with the length of an experiment."""
        length = Interval(epochs or 0) if steps is None else Interval(steps, "steps")
        hook = find_stepping_hook(hooks)
        if hook is None:
            return cls(length, None, steps_per_epoch=steps_per_epoch)
        every = hook.every if hook.every.count else Interval(1)
        return cls(length, every, hook.monitor, steps_per_epoch)

    def count(self, duration: Interval) -> int | None:
        """Return how often schedulers step in a duration; None if that is unknown.

        The last part of the duration may be cut short.
        """
        every = self.every or Interval(1)
        if duration.unit != every.unit and self.steps_per_epoch is None:
            return None
        return divide_up(self.count_steps(duration), self.count_steps(every))

    def count_steps(self, duration: Interval) -> int:
        """Return the number of optimizer steps in a duration, once there is data."""
        if duration.unit == "steps":
            return duration.count
        return duration.count * (self.steps_per_epoch or 1)


def divide_up(count: int, divisor: int) -> int:
    return -(-count // divisor)
