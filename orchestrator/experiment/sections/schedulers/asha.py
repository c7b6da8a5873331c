"""`scheduler: asha`: asynchronous successive halving (Li et al. 2020)."""

import math
import random
from collections import defaultdict
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import Ge, Le
from pydantic import model_validator

from orchestrator.experiment.fields.field_errors import make_value_error
from orchestrator.experiment.sections.schedulers.base import Scheduler


class Asha(Scheduler):
    """Asynchronous successive halving (Li et al. 2020): at each rung the better trials continue,
    without waiting for the others. Take it for many trials whose early reports say something
    about their end."""

    type: Literal["asha"] = "asha"
    grace_period: Annotated[int, Ge(1)] = 1
    """Reports before a trial may be stopped: the first rung."""
    reduction_factor: Annotated[float, Ge(1.1), Le(1000)] = 2
    """One in this many trials continues at each rung, and each rung comes this many times later
    than the previous."""
    max_t: Annotated[int, Ge(1)] | None = None
    """Reports after which every trial is stopped; by default trials run to their own end."""
    brackets: Annotated[int, Ge(1), Le(100)] = 1
    """Number of brackets to which trials are assigned. Each has a later first rung than the previous
    one, which protects trials that begin slowly."""

    @property
    def is_random(self) -> bool:
        return self.brackets > 1

    @model_validator(mode="after")
    def _check_max_t(self) -> Self:
        if self.max_t is not None and self.max_t < self.grace_period:
            raise make_value_error(
                "max_t", f"must be at least grace_period: {self.grace_period}, got {self.max_t}"
            )
        return self


class AshaRule:
    """Stops a trial at a rung if its score is not among the best that have reached the rung."""

    def __init__(self, settings: Asha, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._rungs: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        """Score of each trial that has reached a rung, by bracket and number of the rung."""

    def should_stop(self, trial: int, report: int, score: float) -> bool:
        """Return whether a trial stops at a report.

        Args:
            trial: Number of the trial.
            report: Number of the report, from 1.
            score: Result of the trial; higher is better. It must be finite.
        """
        settings = self._settings
        if settings.max_t is not None and report >= settings.max_t:
            return True

        bracket = self._draw_bracket(trial)
        rung = self._find_rung(bracket, report)
        if rung is None:
            return False

        scores = self._rungs[bracket, rung]
        if trial in scores:
            return False

        others = list(scores.values())
        scores[trial] = score
        if not others:
            return False
        return score < float(np.percentile(others, 100 * (1 - 1 / settings.reduction_factor)))

    def _draw_bracket(self, trial: int) -> int:
        """Return the trial's bracket, the same at every call. Early brackets have more trials."""
        brackets = range(self._settings.brackets)
        weights = [math.exp(-bracket) for bracket in brackets]
        return random.Random(self._seed + trial).choices(brackets, weights)[0]

    def _find_rung(self, bracket: int, report: int) -> int | None:
        """Return the number of the last rung up to a report; None before the bracket's first."""
        first = self._settings.grace_period
        factor = self._settings.reduction_factor
        rung = bracket
        if first * factor**rung > report:
            return None
        while first * factor ** (rung + 1) <= report:
            rung += 1
        return rung
