"""`scheduler: pbt`: population-based training (Jaderberg et al. 2017)."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le
from pydantic import Field

from orchestrator.experiment.sections.schedulers.base import Scheduler


class PBT(Scheduler):
    """Population-based training (Jaderberg et al. 2017): the worst trials continue from the weights
    of the best, with other values. Take it if good values change in the course of training."""

    waits_for_others: ClassVar[bool] = True
    unshareable: ClassVar[str | None] = "pbt copies weights between trials"

    type: Literal["pbt"] = "pbt"
    perturbation_interval: Annotated[int, Ge(1)] = 1
    """Reports between two comparisons of the population."""
    quantile_fraction: Annotated[float, Gt(0), Le(0.5)] = 0.25
    """Fraction of the population that counts as the worst, and as the best."""
    synch: bool = True
    """Whether all trials wait for each other before a comparison, so that a seed reproduces the
    sweep."""
    mutate: list[str] | None = None
    """Parameters that change during training: mutable fields of hooks, numbers of the optimizer
    and, in a custom loop, `task_args` and the arguments of `train`. By default all that can."""
    burn_in_period: Annotated[int, Ge(0)] = 0
    """Reports before the first comparison."""
    resample_probability: Annotated[float, Ge(0), Le(1)] = 0.25
    """Probability of sampling a new value from the domain."""
    perturbation_factors: Annotated[list[Annotated[float, Gt(0)]], Field(min_length=1)] = [0.8, 1.2]  # noqa: RUF012
    """Factors for values that are not sampled anew: a number is multiplied by one of them and
    clipped to its domain, and a choice moves by one item."""

    @property
    def is_random(self) -> bool:
        return True
