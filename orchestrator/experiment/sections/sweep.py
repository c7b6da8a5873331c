"""The `sweep:` section: the search and its space, the comparison of trials, their end."""

import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le, Len
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    model_serializer,
    model_validator,
)

from hooks.interval import Duration
from hooks.metrics.direction import Mode, directions
from hooks.stats.row_stats import PREFIX
from orchestrator.errors import shorten
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.sections.schedulers.asha import Asha
from orchestrator.experiment.sections.schedulers.fifo import Fifo
from orchestrator.experiment.sections.schedulers.hyperband import HyperBand
from orchestrator.experiment.sections.schedulers.median import Median
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.yaml.source import expand_short_form

MAX_VALUES = 1_000
"""Values of one list of a sweep's space, and points to try first."""


_ABSENT: Any = Field(default_factory=list)
_List = Annotated[list[Any], Len(1, MAX_VALUES), _ABSENT]
_Range = Annotated[list[float], Len(2, 2), _ABSENT]
_IntegerRange = Annotated[list[int], Len(2, 2), _ABSENT]
_Steps = Annotated[list[int | float], Len(3, 3), _ABSENT]
_Normal = Annotated[list[float], Len(2, 4), _ABSENT]

_QUANTIZED = ("quniform", "qloguniform")


class Domain(Model):
    """The values of a swept path: one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    choice: _List
    """One value of a list; with `search: grid`, each of them."""
    grid: _List
    """Each value of a list."""
    fan_out: _List
    """Each value of a list, for fields of observing hooks, which share one training run and one
    draw of other paths."""
    uniform: _Range
    """[low, high]: a number."""
    loguniform: _Range
    """A number, uniform in its logarithm."""
    quniform: _Steps
    """[low, high, step]: the nearest of low, low + step ...; an integer if all three are."""
    qloguniform: _Steps
    """The same, uniform in its logarithm."""
    randint: _IntegerRange
    """[low, high] in integers: an integer below high."""
    lograndint: _IntegerRange
    """The same, uniform in its logarithm."""
    normal: _Normal
    """A number from a normal distribution: [mean, sd], or [mean, sd, low, high] to clip it."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if len(self.model_fields_set) != 1:
            known = ", ".join(type(self).model_fields)
            written = {key: getattr(self, key) for key in sorted(self.model_fields_set)}
            raise ValueError(f"must have exactly one of {known}, got {shorten(repr(written))}")
        if self.is_list:
            return self
        if len(self.values) == 3 and self.kind == "normal":
            raise ValueError(f"must be [mean, sd] or [mean, sd, low, high], got {self}")
        low, high = self._bounds
        if self.kind == "normal" and self.values[1] <= 0:
            raise ValueError(f"sd must be greater than 0, got {self}")
        if not low < high:
            raise ValueError(f"low must be below high, got {self}")
        if self.is_logarithmic and low <= 0:
            raise ValueError(f"low must be greater than 0, got {self}")
        if self.kind in _QUANTIZED and self.values[2] <= 0:
            raise ValueError(f"step must be greater than 0, got {self}")
        return self

    def __str__(self) -> str:
        return f"{self.kind}: {self.values}"

    @model_serializer
    def _serialize(self) -> dict[str, list[Any]]:
        return {self.kind: self.values}

    @property
    def kind(self) -> str:
        """Name of the domain in a file."""
        (kind,) = self.model_fields_set
        return kind

    @property
    def values(self) -> list[Any]:
        """Values beside the name in a file."""
        return list(getattr(self, self.kind))

    @property
    def is_list(self) -> bool:
        """True for a list of values, False for a range of numbers."""
        return self.kind in ("choice", "grid", "fan_out")

    @property
    def is_logarithmic(self) -> bool:
        """True if numbers are drawn uniformly in their logarithm."""
        return self.kind in ("loguniform", "qloguniform", "lograndint")

    @property
    def is_integer(self) -> bool:
        """True if the numbers of a range are integers."""
        return all(isinstance(value, int) for value in self.values)

    @property
    def ends(self) -> tuple[Any, Any]:
        """Smallest and largest value of a range; infinite for an unbounded normal distribution."""
        low, high = self._bounds
        return (low, high - 1) if self.kind in ("randint", "lograndint") else (low, high)

    @property
    def _bounds(self) -> list[Any]:
        if self.kind == "normal":
            return self.values[2:] or [-math.inf, math.inf]
        return self.values[:2]

    def candidates(self) -> list[Any]:
        """Return the values to check: each of a list, or both ends of a range.

        An end that is infinite is the largest float.
        """
        if self.is_list:
            return self.values
        largest = sys.float_info.max
        low, high = (min(max(end, -largest), largest) for end in self.ends)
        return [low, high] if self.is_integer else [float(low), float(high)]

    def __contains__(self, value: Any) -> bool:
        if self.is_list:
            return value in self.values
        if type(value) not in (int, float):
            return False
        low, high = self.ends
        return bool(low <= value <= high and self.nearest(value) == value)

    def nearest(self, number: float) -> int | float:
        """Return the nearest value of a range, on its steps; an integer if its ends are."""
        low, high = self.ends
        if self.kind in _QUANTIZED:
            step = self.values[2]
            most = math.floor((high - low) / step + 1e-9)
            steps = min(max(round((number - low) / step), 0), most)
            # Remove the rounding errors of steps such as 0.01.
            number = float(f"{low + steps * step:.12g}")
        number = min(max(number, low), high)
        return round(number) if self.is_integer else float(number)


MAX_SEED = 2**32 - 1
"""The largest seed that Python's, NumPy's and torch's generators all take."""
MAX_PATHS = 200
"""Paths of a sweep's space."""

Seed = Annotated[int, Ge(0), Le(MAX_SEED)]

TrialScheduler = Annotated[
    Fifo | Asha | HyperBand | Median | Race | PBT, Field(discriminator="type")
]
SchedulerName = Literal["fifo", "asha", "hyperband", "median", "race", "pbt"]


def _check_swept_path(path: str) -> str:
    group = path.partition(".")[0]
    if group in ("name", "tags", "notes", "base", "sweep", "workers"):
        raise ValueError(f"cannot be swept: all trials share `{group}`")
    return path


SweptPath = Annotated[str, AfterValidator(_check_swept_path)]

# Ends


class Plateau(Model):
    """A lack of improvement over several reports."""

    patience: Annotated[int, Ge(1)] = 5
    """Consecutive reports without an improvement after which the trial stops."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """An improvement must exceed this."""
    grace_period: Annotated[int, Ge(0)] = 0
    """Reports before a trial may be stopped."""


class Stop(Model):
    """Conditions that end a trial early; the first one met counts."""

    plateau: Plateau | None = None
    """Stops a trial that no longer improves."""
    target: float | None = None
    """Stops a trial whose metric is this good."""
    max_reports: Annotated[int, Ge(1)] | None = None
    """Stops a trial after this many reports of the sweep's metric."""
    time: Duration | None = None
    """Stops a trial at its first report after this time of its own training: `600`, `10m`, `2h`."""


class Budget(Model):
    """Limits of the whole sweep, after which no trial begins; `time` and `samples` also stop
    running trials."""

    time: Duration | None = None
    """Time since the sweep began: `600`, `10m`, `2h`."""
    trials: Annotated[int, Ge(1)] | None = None
    """Number of trials to begin."""
    samples: Annotated[int, Ge(1)] | None = None
    """Training samples over all trials and ranks."""


class Sweep(Model):
    """The search: its space, and how to draw and compare trials."""

    metric: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    """Metric to compare trials by, such as `val/accuracy`, or `stats/step_s/p95`: a statistic of a
    column of the rows; with Optuna several, of which the first selects the best trial."""
    mode: Mode | list[Mode] | None = None
    """`max` or `min`, for all metrics or for each; by default as in a hook, or as the metric's name
    implies."""
    trials: Annotated[int, Ge(1)] | None = None
    """Number of trials; by default those of the grid, or one."""
    repeats: Annotated[int, Ge(1)] = 1
    """Trials of each configuration: with the experiment's `seed`, with the next number, and so
    on."""
    aggregate: Literal["mean", "lower_bound"] = "mean"
    """Aggregate of the results of `repeats`: `mean`, or `lower_bound`, one standard error worse
    than the mean."""
    search: Literal["grid", "random", "optuna"] = "random"
    """Source of configurations; `optuna` (TPE) learns from earlier trials, and needs that extra."""
    points: list[dict[str, Any]] = Field(default_factory=list, max_length=MAX_VALUES)
    """Values to try first, by path; missing values are drawn. Points count among the
    configurations."""
    scheduler: Annotated[
        TrialScheduler,
        BeforeValidator(
            lambda value: expand_short_form(value, "sweep.scheduler"),
            json_schema_input_type=SchedulerName | TrialScheduler,
        ),
    ] = Fifo()
    """Scheduler that decides which trials continue: a name, or `type` and its parameters."""
    stop: Stop | None = None
    """Conditions that end a trial early."""
    budget: Budget | None = None
    """Limits of the whole sweep."""
    max_concurrent: Annotated[int, Ge(1)] | None = None
    """Trials at a time; by default as many as fit on the cluster."""
    engine: Literal["gang", "train"] = "gang"
    """Engine of a trial: a `gang` of processes that the next trial reuses, or a Ray `train` job for
    each trial."""
    share_training: Literal["auto", False] = "auto"
    """`auto` lets trials share a training run where they differ only in hooks that observe; `false`
    never does."""
    seed: Seed = 0
    """Seed of the search and the scheduler."""
    space: Annotated[dict[SweptPath, Domain], Field(min_length=1, max_length=MAX_PATHS)]
    """Dotted path to its domain, such as `{uniform: [0, 1]}`. A path inside a choice
    (`hooks.ema.decay` where `hooks.ema` is a choice) is drawn only if the choice is on and does not
    set it."""

    @property
    def metrics(self) -> list[str]:
        return [self.metric] if isinstance(self.metric, str) else self.metric

    def has_metrics(self, report: Mapping[str, Any]) -> bool:
        return all(metric in report for metric in self.metrics)

    @property
    def objectives(self) -> list[tuple[str, Mode]]:
        """Each metric with its mode; schedulers and the best trial use the first."""
        return list(directions(self.metrics, self.mode).items())

    @property
    def row_stats(self) -> list[str]:
        """The metrics that are statistics of rows, as the hook `row_stats` takes them."""
        return [metric.removeprefix(PREFIX) for metric in self.metrics if metric.startswith(PREFIX)]
