"""Settings of a sweep that contradict each other, or the experiment."""

from collections.abc import Iterator

from hooks.metrics.direction import choose_modes
from hooks.stats.row_stats import PREFIX, split_statistic
from orchestrator.errors import Problem
from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.yaml.dotted_paths import is_within, join
from orchestrator.nearest_names import did_you_mean

TRIAL_COLUMNS = (
    "step_s",
    "data_wait_share",
    "train_s",
    "samples_per_s",
    "process_peak_rss_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "gpu_utilization_percent",
    "gpu_power_w",
    "total_s",
    "reports",
    "epoch",
)
"""Columns with numbers in the table of trials, besides metrics."""


def check_settings(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    yield from _check_metrics(sweep)
    yield from _check_constraints(sweep)
    yield from _check_search(sweep)
    yield from _check_repeats(sweep)
    yield from _check_empty_space(sweep)
    yield from _check_scheduler(sweep)
    yield from _check_workers(sweep, experiment)


def _check_metrics(sweep: SweepSettings) -> Iterator[Problem]:
    for statistic in sweep.row_stats:
        try:
            split_statistic(statistic)
        except ValueError as error:
            yield Problem("sweep.metric", f"{PREFIX}{statistic}: {error}")
    try:
        choose_modes(sweep.metrics, sweep.mode)
    except ValueError as error:
        yield Problem("sweep.mode", str(error))

    for metric in sorted(set(sweep.metrics)):
        if sweep.metrics.count(metric) > 1:
            yield Problem("sweep.metric", f"must list each metric once, got {metric} twice")
    if len(sweep.metrics) == 1:
        return
    if sweep.search.type != "optuna":
        yield Problem(
            "sweep.metric", f"cannot be a list with search: {sweep.search.type}; use search: optuna"
        )
    if sweep.scheduler.type != "fifo":
        yield Problem(
            "sweep.metric",
            f"cannot be a list with scheduler: {sweep.scheduler.type}; use scheduler: fifo",
        )


def _check_constraints(sweep: SweepSettings) -> Iterator[Problem]:
    for column, limit in sweep.constraints.items():
        try:
            Comparison.parse_for(column, limit)
        except ValueError as error:
            yield Problem(f"sweep.constraints.{column}", str(error))
        known = (*TRIAL_COLUMNS, *sweep.metrics)
        if "/" not in column and column not in known:
            yield Problem(
                f"sweep.constraints.{column}",
                f"'{column}' is neither a metric nor one of {', '.join(TRIAL_COLUMNS)}",
                suggestion=did_you_mean(column, known),
            )


def _check_search(sweep: SweepSettings) -> Iterator[Problem]:
    if isinstance(sweep.search, OptunaSearch):
        yield from sweep.search.check(len(sweep.metrics))
    with_scheduler = f"with scheduler: {sweep.scheduler.type}"
    if sweep.search.type == "optuna" and isinstance(sweep.scheduler, PBT | Race):
        yield Problem("sweep.search", f"cannot be optuna {with_scheduler}; use random or grid")
    if sweep.search.type != "grid":
        return
    if sweep.points:
        yield Problem("sweep.points", "has no effect with search: grid, which tries all points")
    if sweep.seed and not sweep.scheduler.is_random:
        yield Problem("sweep.seed", f"has no effect: search: grid samples nothing {with_scheduler}")


def _check_repeats(sweep: SweepSettings) -> Iterator[Problem]:
    if sweep.repeat_count == 1 and sweep.aggregate == "lower_bound":
        yield Problem(
            "sweep.aggregate",
            "lower_bound needs several trials of a configuration; set sweep.repeats, such as"
            " repeats: 5",
        )
    if sweep.repeat_count > 1 and isinstance(sweep.scheduler, PBT):
        yield Problem(
            "sweep.repeats", "cannot be combined with scheduler: pbt; increase trials instead"
        )
    if sweep.repeat_count > 1:
        yield from _check_repeated_path(sweep)


def _check_repeated_path(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield a problem for each path of the space that is, or is around or inside, the repeated
    one."""
    repeated = sweep.repeated_path
    for name in sweep.space:
        if is_within(name, repeated) or is_within(repeated, name):
            yield Problem(
                join("sweep.space", name),
                f"conflicts with sweep.repeats, which sets {repeated} in each trial; remove one",
            )


def _check_empty_space(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield the problems of a sweep without a space, which has a single configuration."""
    if sweep.space:
        return
    if sweep.repeat_count == 1:
        yield Problem(
            "sweep.space",
            "must not be empty without repeats",
            suggestion="add a parameter, such as optimizer.lr: {loguniform: [0.001, 0.1]}, or set"
            " sweep.repeats to train the same experiment with several seeds",
        )
        return

    if sweep.search.type == "optuna":
        yield Problem(
            "sweep.search", "cannot be optuna with an empty space", suggestion="remove it"
        )
    if sweep.trials not in (None, sweep.repeat_count):
        yield Problem(
            "sweep.trials",
            f"must be {sweep.repeat_count} (repeats) with an empty space, got {sweep.trials}",
            suggestion="remove it",
        )


def _check_scheduler(sweep: SweepSettings) -> Iterator[Problem]:
    if isinstance(sweep.scheduler, Race):
        yield from _check_race(sweep)
    if not sweep.scheduler.waits_for_others:
        return
    with_scheduler = f"with scheduler: {sweep.scheduler.type}"
    if sweep.max_concurrent:
        yield Problem("sweep.max_concurrent", f"has no effect {with_scheduler}, whose trials wait")
    if sweep.engine == "train":
        yield Problem("sweep.engine", f"cannot be train {with_scheduler}, which pauses; use gang")


def _check_race(sweep: SweepSettings) -> Iterator[Problem]:
    if sweep.repeat_count == 1:
        yield Problem("sweep.repeats", "must be at least 2 with scheduler: race")
    if sweep.aggregate == "lower_bound":
        yield Problem(
            "sweep.aggregate", "cannot be lower_bound with scheduler: race, which compares means"
        )
    if sweep.budget and sweep.budget.trials:
        yield Problem(
            "sweep.budget.trials", "cannot be combined with scheduler: race; set fewer trials"
        )


def _check_workers(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    workers = experiment.workers
    if sweep.engine == "gang" and isinstance(workers.count, list):
        yield Problem(
            "workers.count",
            f"must be one number for engine: gang, got {workers.count}",
            suggestion="write sweep.engine: train for a range",
        )
    if workers.spares:
        yield Problem(
            "workers.spares", "has no effect in a sweep, where Ray Tune restarts a trial; remove it"
        )
