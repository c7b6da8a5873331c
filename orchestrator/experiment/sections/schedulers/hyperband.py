"""`scheduler: hyperband`: successive halving in brackets (Li et al. 2018)."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from orchestrator.experiment.sections.schedulers.base import Scheduler


class HyperBand(Scheduler):
    """Successive halving in brackets of trials that wait for each other (Li et al. 2018). Its
    decisions compare whole brackets, but workers are idle while a bracket waits for its slowest
    trial."""

    waits_for_others: ClassVar[bool] = True
    unshareable: ClassVar[str | None] = "hyperband pauses each trial on its own"

    type: Literal["hyperband"] = "hyperband"
    max_t: Annotated[int, Ge(1)] = 81
    """Reports after which a trial is stopped; the best trials of a bracket get that far."""
    reduction_factor: Annotated[float, Ge(1.1), Le(1000)] = 3
    """One in this many trials continues each time a bracket is cut."""
