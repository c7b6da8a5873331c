"""The keys of a scheduler beside its own arguments: its warm-up, or its part of a list."""

from collections.abc import Iterable
from typing import Annotated

from annotated_types import Gt, Lt

from hooks.interval import Interval, Units
from orchestrator.experiment.fields.section import Model


class WarmUp(Model):
    """The part of a run in which the rate rises to where the scheduler begins."""

    warmup: Interval = Interval(0)
    """Length of the linear rise, in epochs or optimizer steps; a bare number has the unit of the
    scheduler's steps."""
    warmup_factor: Annotated[float, Gt(0), Lt(1)] = 0.001
    """Factor of the rate that the warm-up begins with."""


class WarmUpInSteps(WarmUp):
    """A warm-up before a scheduler that steps with the optimizer."""

    warmup: Annotated[Interval, Units(("steps", "epochs"))] = Interval(0)


class PhaseBounds(Model):
    """The part of a run in which a scheduler of a list acts, and its interval."""

    begin: Interval | None = None
    """Completed epochs or optimizer steps after which it begins; by default where the one before it
    ends."""
    end: Interval | None = None
    """Completed epochs or optimizer steps after which it ends; by default where the next begins, or
    with the run."""
    every: Annotated[Interval, Units(("epochs", "steps"), ge=1)] | None = None
    """Interval of its steps; by default one optimizer step where begin or end is in steps, else one
    epoch."""

    @property
    def interval(self) -> Interval:
        """Interval of the steps, written or by default."""
        if self.every:
            return self.every
        return choose_interval([bound for bound in (self.begin, self.end) if bound])


def choose_interval(durations: Iterable[Interval]) -> Interval:
    """Return one step if any of the durations is in steps, else one epoch."""
    has_steps = any(duration.unit == "steps" for duration in durations)
    return Interval(1, "steps") if has_steps else Interval(1)
