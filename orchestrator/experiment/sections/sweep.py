"""The `sweep:` section: the search and its space, the comparison of trials, their end."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, BeforeValidator, Field

from hooks.duration import Duration
from hooks.metrics.direction import Mode, choose_modes
from hooks.stats.row_stats import PREFIX
from orchestrator.errors import shorten_value
from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.experiment.fields.section import Model
from orchestrator.experiment.from_python import convert_sweep
from orchestrator.experiment.sections.domain import MAX_VALUES, Domain
from orchestrator.experiment.sections.schedulers.asha import Asha
from orchestrator.experiment.sections.schedulers.fifo import Fifo
from orchestrator.experiment.sections.schedulers.hyperband import HyperBand
from orchestrator.experiment.sections.schedulers.median import Median
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.search import RandomSearch, SearchName, TrialSearch
from orchestrator.experiment.yaml.dotted_paths import expand_short_form

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
    if group in ("name", "tags", "notes", "notify", "base", "sweep", "workers"):
        raise ValueError(f"cannot be swept: all trials share `{group}`")
    return path


def _check_constraint(text: str) -> str:
    Comparison.parse(text)
    return text


SweptPath = Annotated[str, AfterValidator(_check_swept_path)]


def _check_repeated(repeats: Any) -> Any:
    """Check a mapping of one path to its values before its type, so that it is not taken for a
    number."""
    if not isinstance(repeats, Mapping):
        return repeats
    if len(repeats) != 1:
        raise ValueError(f"must map one path to its values, got {len(repeats)} paths")
    ((path, values),) = repeats.items()
    _check_swept_path(str(path))
    if not isinstance(values, list) or len(values) < 2:
        raise ValueError(f"must list at least 2 values of {path}, got {shorten_value(values)}")
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must list different values of {path}, got {value!r} twice")
    return repeats


# Ends


class Plateau(Model):
    """Stop a trial that no longer improves."""

    patience: Annotated[int, Ge(1)] = 5
    """Consecutive reports without an improvement after which the trial ends."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """An improvement must exceed this."""
    grace_period: Annotated[int, Ge(0)] = 0
    """Reports before a trial may be stopped."""


class Stop(Model):
    """Conditions that end a trial early; the first one met counts."""

    plateau: Plateau | None = None
    """Ends a trial that no longer improves."""
    target: float | None = None
    """Ends a trial when its metric reaches this value."""
    max_reports: Annotated[int, Ge(1)] | None = None
    """Ends a trial after this many reports of the sweep's metric."""
    time: Duration | None = None
    """Ends a trial at its first report after this time of its own training, in seconds or as
    `10m`, `2h`, `1d`."""


class Budget(Model):
    """Limits of the whole sweep, after which no trial begins; `time` and `samples` also stop
    running trials."""

    time: Duration | None = None
    """Time that all attempts of the sweep take together, including the start of Ray, without pauses
    before a resume, in seconds or as `10m`, `2h`, `1d`. Running trials stop at their next report."""
    trials: Annotated[int, Ge(1)] | None = None
    """Number of trials to begin. It cannot be combined with `scheduler: race`."""
    samples: Annotated[int, Ge(1)] | None = None
    """Training samples over all trials and ranks. Running trials stop at their next report."""


class SweepSettings(Model):
    """The keys of a sweep: what to try, how to choose it, and how to compare the trials."""

    metric: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    """The metric to compare trials by, such as `val/accuracy`, or a statistic of a column of the
    rows, such as `stats/step_s/p95`. `search: optuna` takes a list of several, of which the first
    selects the best trial."""
    mode: Mode | list[Mode] | None = None
    """Whether more (`max`) or less (`min`) is better, for all metrics or for each. By default it is
    what a hook says of the metric, or what the metric's name implies."""
    trials: Annotated[int, Ge(1)] | None = None
    """Number of trials. By default each point of the grid has `repeats` trials; without a grid it
    is `repeats`."""
    repeats: Annotated[
        Annotated[int, Ge(1)] | dict[str, Annotated[list[Any], Len(2, MAX_VALUES)]],
        BeforeValidator(_check_repeated),
    ] = 1
    """Trials of each configuration. A number gives each another seed: the experiment's `seed`, the
    next number, and so on. A mapping of one path to its values gives each one of these, such as
    `{task_args.fold: [0, 1, 2, 3, 4]}` for cross-validation. They cannot be combined with `pbt` or a
    space that contains the path, and cannot change when the sweep is resumed."""
    aggregate: Literal["mean", "lower_bound"] = "mean"
    """How the results of `repeats` are combined: `mean`, or `lower_bound`, which is one standard
    error worse than the mean."""
    search: Annotated[
        TrialSearch,
        BeforeValidator(
            lambda value: expand_short_form(value, "sweep.search"),
            json_schema_input_type=SearchName | TrialSearch,
        ),
    ] = RandomSearch()
    """How values are chosen: every combination (`grid`), at random (`random`), or by Optuna, which
    learns from earlier trials (`optuna`): a name, or `type` and its parameters."""
    points: list[dict[str, Any]] = Field(default_factory=list, max_length=MAX_VALUES)
    """Configurations to try first, each a mapping of parameters to values. The search samples
    the missing parameters. Points count among the configurations."""
    scheduler: Annotated[
        TrialScheduler,
        BeforeValidator(
            lambda value: expand_short_form(value, "sweep.scheduler"),
            json_schema_input_type=SchedulerName | TrialScheduler,
        ),
    ] = Fifo()
    """Scheduler that decides which trials continue: a name, or `type` and its parameters."""
    stop: Stop | None = None
    """Rules that end a trial early; the first one met counts."""
    constraints: dict[str, Annotated[str, AfterValidator(_check_constraint)]] = Field(
        default_factory=dict
    )
    """Limits that a trial must keep to be the best, by column of the table of trials:
    `{val/loss: "<= 0.5", process_peak_rss_bytes: "<= 8 GiB", total_s: "<= 2h"}`. A trial without a
    number there breaks the limit. Samplers of Optuna that take constraints, such as TPESampler,
    NSGAIISampler and GPSampler, learn from them; schedulers do not."""
    budget: Budget | None = None
    """Limits of the whole sweep, after which no trial begins."""
    max_concurrent: Annotated[int, Ge(1)] | None = None
    """Maximum number of trials at a time; by default as many as fit on the cluster."""
    engine: Literal["gang", "train"] = "gang"
    """How the workers of a trial run: as a `gang` of processes that the next trial reuses, or as a
    Ray `train` job for each trial, which takes longer to start, but allows `workers.count` to be a
    range, so that a trial continues with fewer workers. `hyperband`, `pbt` and `fan_out` need `gang`."""
    share_training: Literal["auto", False] = "auto"
    """Whether trials that differ only in observing hooks share one training run: where possible
    (`auto`), or never (`false`)."""
    seed: Seed = 0
    """Seed of the search and of the scheduler."""
    space: Annotated[dict[SweptPath, Domain], Field(max_length=MAX_PATHS)] = Field(
        default_factory=dict
    )
    """The domain of each parameter, such as `optimizer.lr: {loguniform: [0.001, 0.1]}`. It may only
    be empty with `repeats`, which then train the same experiment several times. A parameter
    inside a choice (`hooks.ema.decay` where `hooks.ema` is a choice) is sampled only if the choice
    is on and does not set it. A sweep cannot vary `name`, `tags`, `notes`, `workers`, `base` or
    `sweep`."""

    @classmethod
    def _convert(cls, values: Mapping[str, Any]) -> Any:
        return convert_sweep(values)

    @property
    def repeated_path(self) -> str:
        """Path in which the trials of a configuration differ."""
        return "seed" if isinstance(self.repeats, int) else next(iter(self.repeats))

    @property
    def repeat_count(self) -> int:
        """Number of trials of a configuration."""
        if isinstance(self.repeats, int):
            return self.repeats
        return len(self.repeats[self.repeated_path])

    def list_repeated_values(self, seed: int) -> list[Any]:
        """Return the value of each trial of a configuration; `seed` is that of the experiment."""
        if isinstance(self.repeats, int):
            return [*range(seed, seed + self.repeats)]
        return self.repeats[self.repeated_path]

    @property
    def metrics(self) -> list[str]:
        return [self.metric] if isinstance(self.metric, str) else self.metric

    def has_metrics(self, report: Mapping[str, Any]) -> bool:
        return all(metric in report for metric in self.metrics)

    @property
    def objectives(self) -> list[tuple[str, Mode]]:
        """Each metric with its mode; schedulers and the best trial use the first."""
        return list(choose_modes(self.metrics, self.mode).items())

    @property
    def row_stats(self) -> list[str]:
        """The metrics that are statistics of rows, as the hook `row_stats` takes them."""
        return [metric.removeprefix(PREFIX) for metric in self.metrics if metric.startswith(PREFIX)]
