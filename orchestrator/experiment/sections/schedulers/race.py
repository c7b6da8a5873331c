"""`scheduler: race`: configurations compete seed by seed (F-Race, Birattari et al. 2002)."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Lt

from orchestrator.experiment.sections.schedulers.base import Scheduler


class Race(Scheduler):
    """Compares configurations seed by seed, and eliminates those that will not win (F-Race, Birattari
    et al. 2002). It needs `repeats` and no reports, so take it to choose between few configurations
    whose results are noisy."""

    unshareable: ClassVar[str | None] = (
        "race starts the trials of a configuration one after another"
    )

    type: Literal["race"] = "race"
    level: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    """Maximum probability of eliminating the configuration that would win with all seeds."""
