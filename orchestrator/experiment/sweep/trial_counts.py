"""The numbers of trials and of trainings of a sweep."""

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.grid import (
    combine_points_with_grid,
    count_points,
    make_fan_out_points,
)
from orchestrator.units import format_count

MAX_TRIALS = 100_000


def count_trials(sweep: SweepSettings) -> int:
    """Return the number of trials within the budget."""
    trials = sweep.trials or count_points(sweep) * sweep.repeat_count
    if sweep.budget and sweep.budget.trials:
        return min(trials, sweep.budget.trials)
    return trials


def count_trainings(sweep: SweepSettings, first: int = 0) -> int:
    """Return how many trainings the trials from number `first` on share."""
    trials_per_draw = len(make_fan_out_points(sweep)) * sweep.repeat_count
    numbers = range(first, count_trials(sweep))
    trainings = {(number // trials_per_draw, number % sweep.repeat_count) for number in numbers}
    return len(trainings)


def check_configuration_count(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield a problem if a race has a single configuration, which wins without a race."""
    if isinstance(sweep.scheduler, Race) and count_trials(sweep) <= sweep.repeat_count:
        yield Problem(
            "sweep.scheduler",
            "race needs at least 2 configurations, got 1",
            suggestion="add values to sweep.space or increase sweep.trials, or use scheduler: fifo",
        )


def check_trial_count(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield the problems of the number of trials of a sweep, whose space is valid."""
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
