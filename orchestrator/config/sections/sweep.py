"""The `sweep:` section: what is searched, how, by whom trials are judged, and when they end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from hooks.metrics.direction import Mode, directions
from hooks.stats.row_stats import PREFIX, column_and_statistic
from orchestrator.config.sections.base import Model
from orchestrator.config.sections.domain import Domain
from orchestrator.config.text.bounds import LARGEST_SEED, MOST_LISTED, MOST_SWEPT

_DURATION = r"^\s*(\d+(?:\.\d+)?)\s*([smhd])\s*$"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: Any) -> Any:
    match = re.match(_DURATION, value) if isinstance(value, str) else None
    if isinstance(value, str) and match is None:
        raise ValueError("must be seconds, or text such as 90s, 10m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]] if match else value


Seconds = Annotated[
    float,
    Gt(0),
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": _DURATION}]}),
]
"""Seconds, written as a number or as 90s, 10m, 2h, 1d."""


Seed = Annotated[int, Ge(0), Le(LARGEST_SEED)]

# Schedulers. Their periods count reports: those that hold the sweep's metric.


class Fifo(Model):
    """Every trial runs to its end."""

    type: Literal["fifo"] = "fifo"


class Asha(Model):
    """Asynchronous successive halving: at each rung the better part goes on, without waiting for the others."""

    type: Literal["asha"] = "asha"
    grace_period: Annotated[int, Ge(1)] = 1
    """Reports a trial makes before it may be stopped: the first rung."""
    reduction_factor: Annotated[float, Gt(1)] = 2
    """One in this many goes on at each rung, and each rung is this much later than the one before."""
    max_t: Annotated[int, Ge(1)] | None = None
    """Reports after which a trial is stopped in any case; by default it runs to its own end."""
    brackets: Annotated[int, Ge(1)] = 1
    """How many ladders of rungs trials are dealt out to, each beginning later than the one before."""

    @model_validator(mode="after")
    def _has_a_rung(self) -> Self:
        if self.max_t is not None and self.max_t < self.grace_period:
            raise ValueError(f"max_t={self.max_t} ends trials before grace_period={self.grace_period} is over")
        return self


class HyperBand(Model):
    """Successive halving in brackets of trials that wait for each other."""

    type: Literal["hyperband"] = "hyperband"
    max_t: Annotated[int, Ge(1)] = 81
    """Reports after which a trial is stopped; the best of a bracket come that far."""
    reduction_factor: Annotated[float, Gt(1)] = 3
    """One in this many goes on each time a bracket is halved."""


class Median(Model):
    """Stops a trial whose best is below the median of what the others had reached on average by then."""

    type: Literal["median"] = "median"
    grace_period: Annotated[int, Ge(1)] = 1
    """Reports a trial makes before it may be stopped."""
    min_samples_required: Annotated[int, Ge(1)] = 3
    """Other trials there must be to take a median of."""


class Race(Model):
    """Compares configurations seed by seed, and eliminates those that will not win."""

    type: Literal["race"] = "race"
    level: Annotated[float, Gt(0), Lt(0.5)] = 0.05
    """Largest probability of eliminating the configuration that would win with all seeds."""


class Population(Model):
    """What PBT and PB2 have in common: the worst trials go on from the weights of the best, with other values."""

    perturbation_interval: Annotated[int, Ge(1)] = 1
    """Reports between two looks at the population."""
    quantile_fraction: Annotated[float, Gt(0), Le(0.5)] = 0.25
    """Which part of the population is the worst, and which the best."""
    synch: bool = True
    """Whether trials wait for each other at each look, so that the same seed gives the same sweep."""
    mutate: list[str] | None = None
    """Which paths of the space change in flight: fields of hooks, numbers of the optimizer. By default all such."""


class PBT(Population):
    """Population-based training: new values are drawn anew or multiplied with a factor (Jaderberg et al. 2017)."""

    type: Literal["pbt"] = "pbt"
    burn_in_period: Annotated[int, Ge(0)] = 0
    """Reports before the first look."""
    resample_probability: Annotated[float, Ge(0), Le(1)] = 0.25
    """How likely a value is drawn anew from its domain."""
    perturbation_factors: Annotated[list[Annotated[float, Gt(0)]], Field(min_length=1)] = [0.8, 1.2]  # noqa: RUF012
    """Otherwise a number is multiplied with one of these, and clipped to its domain; a choice moves to a neighbour."""


class PB2(Population):
    """Population-based bandits: new values come from a Gaussian process over what changes have brought so far
    (Parker-Holder et al. 2020). Needs scikit-learn (extra `pb2`)."""

    type: Literal["pb2"] = "pb2"


Scheduler = Annotated[Fifo | Asha | HyperBand | Median | Race | PBT | PB2, Field(discriminator="type")]
SchedulerName = Literal["fifo", "asha", "hyperband", "median", "race", "pbt", "pb2"]


def _typed(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _own_of_a_trial(path: str) -> str:
    group = path.partition(".")[0]
    if group in ("name", "tags", "notes", "base", "sweep", "workers"):
        raise ValueError(f"cannot be swept: the trials of a sweep share their {group}")
    return path


SweptPath = Annotated[str, AfterValidator(_own_of_a_trial)]


# Ends


class Plateau(Model):
    """No better for a while."""

    patience: Annotated[int, Ge(1)] = 5
    """How many reports in a row may fail to improve on the best; the last of them stops the trial."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """By how much more than this a report must beat the best to count as better."""
    grace_period: Annotated[int, Ge(0)] = 0
    """Reports a trial makes before it may be stopped."""


class Stop(Model):
    """When a trial ends before its time: whichever comes first."""

    plateau: Plateau | None = None
    """Stops a trial that gets no better."""
    target: float | None = None
    """Stops a trial whose metric is this good."""
    max_reports: Annotated[int, Ge(1)] | None = None
    """Stops a trial after this many reports with the sweep's metric."""
    time: Seconds | None = None
    """Stops a trial at its first report after this time of its own training: `600`, `10m`, `2h`."""


class Budget(Model):
    """What the whole sweep may use: whichever comes first. What runs then is stopped, and says so."""

    time: Seconds | None = None
    """Time since the sweep began: `600`, `10m`, `2h`."""
    trials: Annotated[int, Ge(1)] | None = None
    """Trials begun."""
    samples: Annotated[int, Ge(1)] | None = None
    """Training samples over all trials and ranks."""


class Sweep(Model):
    """How trials are drawn and judged."""

    metric: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    """What trials are judged by, such as `val/accuracy`, or `stats/step_s/p95`: a statistic of a column of the rows;
    several with Optuna, the first of which names the best."""
    mode: Mode | list[Mode] | None = None
    """Whether more (`max`) or less (`min`) of it is better, one for all metrics or one for each; by default as the
    checkpoint or another hook has it for the metric, or as its name implies."""
    trials: Annotated[int, Ge(1)] | None = None
    """How many trials there are; by default those of the grid, or of one configuration."""
    repeats: Annotated[int, Ge(1)] = 1
    """Trials of each configuration: with the experiment's `seed`, with the next whole number, and so on."""
    aggregate: Literal["mean", "lower_bound"] = "mean"
    """How the results of `repeats` become one: their `mean`, or the `lower_bound`, a standard error below the mean
    (above it where less is better)."""
    search: Literal["grid", "random", "optuna"] = "random"
    """Where the next configuration comes from; `optuna` (TPE) learns from the trials before, and needs that extra."""
    points: list[dict[str, Any]] = Field(default_factory=list, max_length=MOST_LISTED)
    """Values to try first, by path; what a point does not say is drawn. They count among the configurations."""
    scheduler: Annotated[Scheduler, BeforeValidator(_typed, json_schema_input_type=SchedulerName | Scheduler)] = Fifo()
    """Which trials go on: a name, or `type` and its parameters."""
    stop: Stop | None = None
    """When a trial ends before its time."""
    budget: Budget | None = None
    """What the whole sweep may use."""
    max_concurrent: Annotated[int, Ge(1)] | None = None
    """Trials at a time; by default as many as the cluster holds."""
    engine: Literal["gang", "train"] = "gang"
    """What trains a trial: a `gang` of processes that stay warm for the next one, or a Ray `train` job of its own."""
    share_training: Literal["auto", False] = "auto"
    """Whether trials that differ only in hooks which observe share one training: `auto` where they can, `false`
    never."""
    seed: Seed = 0
    """Seeds the search and the scheduler."""
    space: Annotated[dict[SweptPath, Domain], Field(min_length=1, max_length=MOST_SWEPT)]
    """Dotted path to what it may be, such as `{uniform: [0, 1]}`. A path inside a choice (`hooks.ema.decay` where
    `hooks.ema` is one) is drawn only where the choice is on and does not say it itself."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        messages = [message for _, message in contradictions(self)]
        if messages:
            raise ValueError("; ".join(messages))
        return self

    @property
    def metrics(self) -> list[str]:
        """What trials are judged by, as a list."""
        return [self.metric] if isinstance(self.metric, str) else self.metric

    def has_metrics(self, report: Mapping[str, Any]) -> bool:
        """Whether a report holds all of the metrics."""
        return all(metric in report for metric in self.metrics)

    @property
    def objectives(self) -> list[tuple[str, Mode]]:
        """Each metric with its mode; the first is what schedulers and the best trial go by."""
        return list(directions(self.metrics, self.mode).items())

    @property
    def row_stats(self) -> list[str]:
        """The metrics that are statistics of rows, as the hook `row_stats` takes them: `step_s/p95`."""
        return [metric.removeprefix(PREFIX) for metric in self.metrics if metric.startswith(PREFIX)]


def contradictions(sweep: Sweep) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not go together in a sweep, beside its space: the keys it is of, and what is wrong."""
    several = len(sweep.metrics) > 1
    kind, population = sweep.scheduler.type, isinstance(sweep.scheduler, Population)
    synchronous = population or kind == "hyperband"
    for written in sweep.row_stats:
        try:
            column_and_statistic(written)
        except ValueError as error:
            yield ("metric",), f"metric {PREFIX}{written}: {error}"
    try:
        directions(sweep.metrics, sweep.mode)
    except ValueError as error:
        yield ("metric", "mode"), str(error)
    if several and sweep.search != "optuna":
        yield ("metric", "search"), f"several metrics need search: optuna; {sweep.search} search knows one"
    if several and kind != "fifo":
        yield ("metric", "scheduler"), f"several metrics need scheduler: fifo; {kind} goes by one"
    if population and sweep.search == "optuna":
        yield ("scheduler", "search"), f"{kind} changes values itself; its population comes from search: random or grid"
    if population and sweep.repeats > 1:
        yield (
            ("repeats", "scheduler"),
            (
                f"repeats does not go with {kind}, whose trials take over each other's weights and values; write trials"
                " for a larger population"
            ),
        )
    if sweep.aggregate == "lower_bound" and sweep.repeats == 1:
        yield (
            ("aggregate", "repeats"),
            "aggregate: lower_bound needs several trials of each configuration; set repeats, for example to 5",
        )
    if isinstance(sweep.scheduler, Race):
        if sweep.repeats == 1:
            yield (
                ("repeats", "scheduler"),
                "race compares configurations over seeds; set repeats, for example to 5",
            )
        if sweep.aggregate == "lower_bound":
            yield (
                ("aggregate", "scheduler"),
                "aggregate: lower_bound does not go with race, whose winner has the best mean; remove one of them",
            )
        if sweep.search == "optuna":
            yield ("scheduler", "search"), "race needs all configurations at the start; set search to random or grid"
        if sweep.budget and sweep.budget.trials:
            yield (
                ("budget", "scheduler"),
                "budget.trials does not go with race, which trains all configurations seed by seed; set fewer trials",
            )
    if sweep.max_concurrent is not None and synchronous:
        yield (
            ("max_concurrent", "scheduler"),
            f"max_concurrent does not go with {kind}, whose trials wait for each other",
        )
    if sweep.engine == "train" and synchronous:
        yield (
            ("engine", "scheduler"),
            (
                f"engine: train does not go with {kind}, whose trials wait for each other: each time one goes on, a Ray"
                " Train job would be started anew. Use engine: gang, or scheduler fifo, asha, median or race"
            ),
        )
    if sweep.points and sweep.search == "grid":
        yield ("points", "search"), "points do not go with search: grid, which has its own"
