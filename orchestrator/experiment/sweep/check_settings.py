"""Settings of a sweep that contradict each other, or the experiment."""

from collections.abc import Iterator

from hooks.metrics.direction import directions
from hooks.stats.row_stats import PREFIX, split_statistic
from orchestrator.errors import Problem, did_you_mean
from orchestrator.experiment.checks.train_method import list_train_parameters
from orchestrator.experiment.fields.comparison import Comparison
from orchestrator.experiment.resolve import find_task
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.search import OptunaSearch
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import (
    can_mutate,
    combine_points_with_grid,
    count_points,
    count_trials,
    list_mutated_paths,
    make_fan_out_points,
)
from orchestrator.experiment.yaml.document import is_within, join
from orchestrator.task import has_custom_loop
from orchestrator.units import format_count

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
MAX_TRIALS = 100_000


def check_settings(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    yield from _check_metrics(sweep)
    yield from _check_constraints(sweep)
    yield from _check_search(sweep)
    yield from _check_repeats(sweep)
    yield from _check_scheduler(sweep)
    yield from _check_workers(sweep, experiment)


def _check_metrics(sweep: SweepSettings) -> Iterator[Problem]:
    for statistic in sweep.row_stats:
        try:
            split_statistic(statistic)
        except ValueError as error:
            yield Problem("sweep.metric", f"{PREFIX}{statistic}: {error}")
    try:
        directions(sweep.metrics, sweep.mode)
    except ValueError as error:
        yield Problem("sweep.mode", str(error))

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
        if "/" not in column and column not in TRIAL_COLUMNS:
            yield Problem(
                f"sweep.constraints.{column}",
                f"'{column}' is neither a metric nor one of {', '.join(TRIAL_COLUMNS)}",
                suggestion=did_you_mean(column, TRIAL_COLUMNS),
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
        yield Problem("sweep.seed", f"has no effect: search: grid draws nothing {with_scheduler}")


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


# The number of trials, for a valid space


def check_trial_count(sweep: SweepSettings) -> Iterator[Problem]:
    per_round = count_points(sweep) * sweep.repeat_count
    trials = sweep.trials or per_round
    if count_trials(sweep) > MAX_TRIALS:
        path = "sweep.trials" if sweep.trials else "sweep.space"
        yield Problem(
            path,
            f"makes {count_trials(sweep):,} trials, at most {MAX_TRIALS:,} are allowed",
            suggestion="use search: random, or remove values",
        )
    elif sweep.search.type == "grid" and trials != per_round:
        yield Problem(
            "sweep.trials",
            f"must be {per_round} ({_describe_round(sweep)}), got {trials}",
            suggestion="remove it; budget.trials ends a sweep before its grid is complete, and"
            " repeats adds seeds",
        )
    elif trials % per_round:
        message = f"must be a multiple of {per_round} ({_describe_round(sweep)}), got {trials}"
        below = trials // per_round * per_round
        hint = f"use {below} or {below + per_round}" if below else f"use {per_round}"
        yield Problem("sweep.trials", message, suggestion=hint)
    yield from _check_points_fit(sweep, trials)


def _describe_round(sweep: SweepSettings) -> str:
    counts = {"points of the grid": count_points(sweep), "repeats": sweep.repeat_count}
    return " x ".join(f"{count} {noun}" for noun, count in counts.items() if count > 1)


def _check_points_fit(sweep: SweepSettings, trials: int) -> Iterator[Problem]:
    combinations = sum(1 for _ in combine_points_with_grid(sweep))
    needed = combinations * len(make_fan_out_points(sweep)) * sweep.repeat_count
    if needed > trials:
        yield Problem(
            "sweep.points",
            f"need {format_count(needed, 'trial')} for {format_count(len(sweep.points), 'point')},"
            f" and the sweep has {trials:,}",
        )


# What a population changes


def check_mutation(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    """Yield the problems of the values that a population changes during training.

    A training loop of the task's own starts over with the new values, so `mutate` may also name
    the settings that it reads.
    """
    scheduler = sweep.scheduler
    if not isinstance(scheduler, PBT):
        return
    restartable: list[str] = []
    task = find_task(experiment.task)
    if task and has_custom_loop(task):
        restartable = ["task_args", *list_train_parameters(task)]

    for index, name in enumerate(scheduler.mutate or []):
        path = f"sweep.scheduler.mutate.{index}"
        if name not in sweep.space:
            hint = did_you_mean(name, sweep.space)
            yield Problem(path, f"'{name}' is not in the space", suggestion=hint)
        elif name.partition(".")[0] not in restartable and not can_mutate(name):
            allowed = "name fields of hooks or optimizer numbers"
            yield Problem(path, f"'{name}' cannot change during training; {allowed}")

    if not list_mutated_paths(sweep) and not scheduler.mutate:
        others = [name for name in sweep.space if name.partition(".")[0] in restartable]
        hint = f"write mutate: [{', '.join(others)}], or some of these" if others else None
        needed = "a swept field of a hook or number of the optimizer to change"
        yield Problem("sweep.scheduler", f"{scheduler.type} needs {needed}", suggestion=hint)
    elif count_trials(sweep) < 2:
        yield Problem(
            "sweep.trials", f"must be at least 2 with scheduler: pbt, got {count_trials(sweep)}"
        )
