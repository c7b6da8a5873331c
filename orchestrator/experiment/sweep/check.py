"""Checks of a sweep: its settings together, and each value of its space in the experiment."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hooks.metrics.direction import directions
from hooks.stats.row_stats import PREFIX, column_and_statistic
from orchestrator.errors import ConfigError, Problem, collect_problems, did_you_mean, shorten
from orchestrator.experiment.checks.conflicts import list_train_parameters, make_relative_message
from orchestrator.experiment.checks.metrics import with_inferred_modes
from orchestrator.experiment.fields.parameters import check
from orchestrator.experiment.resolve import Sections, build, check_sections, find_task
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.schedulers.pbt import PBT
from orchestrator.experiment.sections.schedulers.race import Race
from orchestrator.experiment.sections.sweep import Domain, Sweep
from orchestrator.experiment.sweep.shared_training import find_unshareable_paths
from orchestrator.experiment.sweep.space import (
    can_mutate,
    choose_context,
    combine_points_with_grid,
    count_points,
    count_trials,
    find_enclosing_path,
    leaves_open,
    list_mutated_paths,
    make_fan_out_points,
)
from orchestrator.experiment.yaml.reader import join
from orchestrator.experiment.yaml.source import ExperimentSource, with_value
from orchestrator.task import has_custom_loop

MAX_TRIALS = 100_000
MAX_CHECKED_VALUES = 5_000
"""Values of a space to check before the first trial."""


def check_sweep(
    source: ExperimentSource, sections: Sections, known: Sequence[Problem]
) -> list[Problem]:
    """Return the problems of a sweep beyond its fields; `known` are the problems that `resolve`
    reports."""
    data = sections.valid_data
    sweep = sections.experiment.sweep
    if sweep is None:
        partial = _read_valid_settings(sections)
        return list(_check_values(partial.space, data)) if partial else []

    problems = [*_find_overridden_paths(source, sweep)]
    problems += _check_settings(sweep, sections.experiment)
    if not problems:
        problems.extend(_check_values(sweep.space, {**data, **_write_objectives(sweep)}))
    if not problems and not known:
        problems.extend(find_unshareable_paths(source, sweep))
    return problems


def _find_overridden_paths(source: ExperimentSource, sweep: Sweep) -> Iterator[Problem]:
    overrides = dict(source.values)
    for path in sweep.space:
        if overrides.get(path) is not None:
            hint = f"remove it, or keep it for all trials: sweep.space.{path}=null"
            message = "has no effect: sweep.space sets it in each trial"
            yield Problem(path, message, suggestion=hint)


def _write_objectives(sweep: Sweep) -> dict[str, Any]:
    """Return the part of the sweep that decides the modes of metrics in its trials."""
    try:
        modes = [mode for _, mode in sweep.objectives]
    except ValueError:  # an unknown mode is a separate problem
        return {}
    return {"sweep": {"metric": sweep.metric, "mode": modes}}


def _read_valid_settings(sections: Sections) -> Sweep | None:
    """Return the sweep without the settings and the domains that have problems, if it has a metric
    and a space."""
    written = sections.data.get("sweep")
    if not isinstance(written, Mapping):
        return None
    paths = [
        f"{problem.path.removeprefix('sweep.')}."
        for problem in sections.problems
        if problem.path.startswith("sweep.")
    ]

    def is_valid(path: str) -> bool:
        return not any(wrong.startswith(f"{path}.") for wrong in paths)

    rest = {
        key: value for key, value in written.items() if key in ("metric", "space") or is_valid(key)
    }
    space = written.get("space")
    if isinstance(space, Mapping):
        rest["space"] = {
            path: domain for path, domain in space.items() if is_valid(f"space.{path}")
        }
    return collect_problems([], check, Sweep, rest, "sweep")


# Settings


def _check_settings(sweep: Sweep, experiment: Experiment) -> Iterator[Problem]:
    yield from _find_contradictions(sweep)
    if sweep.engine == "gang" and isinstance(experiment.workers.count, list):
        message = f"must be one number for engine: gang, got {experiment.workers.count}"
        yield Problem("workers.count", message, suggestion="write sweep.engine: train for a range")
    if experiment.workers.spares:
        yield Problem(
            "workers.spares", "has no effect in a sweep, where Ray Tune restarts a trial; remove it"
        )
    space_problems = [*_find_unsearchable(sweep), *_find_overlaps(sweep)]
    yield from space_problems or [*_check_trial_count(sweep), *_check_mutation(sweep, experiment)]
    for index, point in enumerate(sweep.points):
        yield from _check_point(point, f"sweep.points.{index}", sweep)


def _find_contradictions(sweep: Sweep) -> Iterator[Problem]:
    for statistic in sweep.row_stats:
        try:
            column_and_statistic(statistic)
        except ValueError as error:
            yield Problem("sweep.metric", f"{PREFIX}{statistic}: {error}")
    try:
        directions(sweep.metrics, sweep.mode)
    except ValueError as error:
        yield Problem("sweep.mode", str(error))
    kind, search, several = sweep.scheduler.type, sweep.search, len(sweep.metrics) > 1
    is_population, is_race = (
        isinstance(sweep.scheduler, PBT),
        isinstance(sweep.scheduler, Race),
    )
    needs_all = is_population or is_race
    draws = search != "grid" or sweep.scheduler.is_random
    one_seed, is_bound, with_kind = (
        sweep.repeats == 1,
        sweep.aggregate == "lower_bound",
        f"with scheduler: {kind}",
    )
    caps_trials = bool(sweep.budget and sweep.budget.trials)
    conflicts = [
        (
            several and search != "optuna",
            "metric",
            f"cannot be a list with search: {search}; use search: optuna",
        ),
        (
            several and kind != "fifo",
            "metric",
            f"cannot be a list {with_kind}; use scheduler: fifo",
        ),
        (
            search == "optuna" and needs_all,
            "search",
            f"cannot be optuna {with_kind}; use random or grid",
        ),
        (
            is_population and not one_seed,
            "repeats",
            f"cannot be combined {with_kind}; increase trials instead",
        ),
        (is_race and one_seed, "repeats", "must be at least 2 with scheduler: race"),
        (
            is_bound and one_seed,
            "aggregate",
            "lower_bound needs several seeds; set sweep.repeats, such as repeats: 5",
        ),
        (
            is_race and is_bound,
            "aggregate",
            "cannot be lower_bound with scheduler: race, which compares means",
        ),
        (
            is_race and caps_trials,
            "budget.trials",
            "cannot be combined with scheduler: race; set fewer trials",
        ),
        (
            sweep.max_concurrent and sweep.scheduler.waits_for_others,
            "max_concurrent",
            f"has no effect {with_kind}, whose trials wait",
        ),
        (
            sweep.scheduler.waits_for_others and sweep.engine == "train",
            "engine",
            f"cannot be train {with_kind}, which pauses; use gang",
        ),
        (
            sweep.points and search == "grid",
            "points",
            "has no effect with search: grid, which tries all points",
        ),
        (
            sweep.seed and not draws,
            "seed",
            f"has no effect: search: grid draws nothing {with_kind}",
        ),
    ]
    yield from (Problem(f"sweep.{key}", message) for applies, key, message in conflicts if applies)


def _find_unsearchable(sweep: Sweep) -> Iterator[Problem]:
    """Yield a problem for each domain that the search cannot draw from."""
    alternatives = {"grid": "choice", "normal": "uniform"}
    for name, domain in sweep.space.items():
        path, kind = join("sweep.space", f"{name}.{domain.kind}"), domain.kind
        if sweep.search == "grid" and not domain.is_list:
            yield Problem(
                path, "is not supported with search: grid; use choice or grid, or search: random"
            )
        if sweep.search == "optuna" and kind in alternatives:
            yield Problem(path, f"is not supported with search: optuna; use {alternatives[kind]}")


def _find_overlaps(sweep: Sweep) -> Iterator[Problem]:
    """Yield a problem for each path inside a swept path, unless that is a choice of null and
    mappings."""
    for inner, domain in sweep.space.items():
        message = None
        for outer in (outer for outer in sweep.space if inner.startswith(f"{outer}.")):
            around, key = sweep.space[outer], inner.removeprefix(f"{outer}.")
            if find_enclosing_path(outer, sweep.space):
                message = f"is inside '{outer}', which is itself inside a swept path; sweep only one of them"
            elif domain.kind == "fan_out":
                message = f"is inside '{outer}', which is swept too; use grid instead of fan_out"
            elif not around.is_list or not all(
                value is None or isinstance(value, bool | dict) for value in around.values
            ):
                message = f"is inside '{outer}', which is swept too and is not a choice of null and mappings"
            elif not any(leaves_open(key, value) for value in around.values):
                message = f"is never drawn: every value of '{outer}' is off or sets it"
            elif around.kind == "choice" and sweep.search != "grid" and domain.kind == "grid":
                message = f"is a grid inside '{outer}', which is drawn; use choice"
        if message:
            yield Problem(join("sweep.space", inner), message)


def _check_trial_count(sweep: Sweep) -> Iterator[Problem]:
    points = count_points(sweep)
    per_round = points * sweep.repeats
    trials = sweep.trials or per_round
    factors = " x ".join(
        f"{count} {noun}"
        for count, noun in ((points, "points of the grid"), (sweep.repeats, "repeats"))
        if count > 1
    )
    if sweep.repeats > 1 and "seed" in sweep.space:
        yield Problem(
            "sweep.space.seed",
            f"conflicts with repeats: {sweep.repeats}, which sets the seeds; remove one",
        )
    if count_trials(sweep) > MAX_TRIALS:
        message = f"makes {count_trials(sweep):,} trials, at most {MAX_TRIALS:,} are allowed"
        hint = "use search: random, or remove values"
        yield Problem("sweep.trials" if sweep.trials else "sweep.space", message, suggestion=hint)
    elif sweep.search == "grid" and trials != per_round:
        hint = "remove it; budget.trials ends a sweep before its grid is complete, and repeats adds seeds"
        yield Problem(
            "sweep.trials", f"must be {per_round} ({factors}), got {trials}", suggestion=hint
        )
    elif trials % per_round:
        below = trials // per_round * per_round
        hint = f"use {below} or {below + per_round}" if below else f"use {per_round}"
        yield Problem(
            "sweep.trials",
            f"must be a multiple of {per_round} ({factors}), got {trials}",
            suggestion=hint,
        )
    needed = (
        sum(1 for _ in combine_points_with_grid(sweep))
        * len(make_fan_out_points(sweep))
        * sweep.repeats
    )
    if needed > trials:
        yield Problem(
            "sweep.points",
            f"need {needed} trials for {len(sweep.points)} points, and there are {trials}",
        )


def _check_mutation(sweep: Sweep, experiment: Experiment) -> Iterator[Problem]:
    """Yield the problems of what a population changes during training.

    A training loop of the task's own starts over with the new values, so `mutate` may also name
    what it reads.
    """
    scheduler = sweep.scheduler
    if not isinstance(scheduler, PBT):
        return
    task = find_task(experiment.task)
    restartable = (
        ("task_args", *list_train_parameters(task)) if task and has_custom_loop(task) else ()
    )
    for index, name in enumerate(scheduler.mutate or []):
        path = f"sweep.scheduler.mutate.{index}"
        if name not in sweep.space:
            yield Problem(
                path, f"'{name}' is not in the space", suggestion=did_you_mean(name, sweep.space)
            )
        elif name.partition(".")[0] not in restartable and not can_mutate(name):
            yield Problem(
                path,
                f"'{name}' cannot change during training; name fields of hooks or optimizer numbers",
            )
    mutated = list_mutated_paths(sweep)
    if not mutated and not scheduler.mutate:
        others = [name for name in sweep.space if name.partition(".")[0] in restartable]
        hint = f"write mutate: [{', '.join(others)}], or some of these" if others else None
        message = (
            f"{scheduler.type} needs a swept field of a hook or number of the optimizer to change"
        )
        yield Problem("sweep.scheduler", message, suggestion=hint)
    elif count_trials(sweep) < 2:
        yield Problem(
            "sweep.trials",
            f"must be at least 2 with scheduler: {scheduler.type}, got {count_trials(sweep)}",
        )


def _check_point(point: Mapping[str, Any], path: str, sweep: Sweep) -> Iterator[Problem]:
    for name, value in point.items():
        domain = sweep.space.get(name)
        if domain is None:
            hint = did_you_mean(name, sweep.space)
            yield Problem(join(path, name), "is not in the space", suggestion=hint)
        elif domain.kind == "fan_out":
            yield Problem(
                join(path, name),
                "cannot be in a point: each point runs with all fan_out values; remove it",
            )
        elif value not in domain:
            yield Problem(
                join(path, name),
                f"must be within {shorten(str(domain))}, got {shorten(repr(value))}",
            )


# Values


def _check_values(space: Mapping[str, Domain], data: Mapping[str, Any]) -> Iterator[Problem]:
    """Check each listed value and both ends of each range in the experiment, one at a time."""
    if sum(len(domain.candidates()) for domain in space.values()) > MAX_CHECKED_VALUES:
        message = f"has more than {MAX_CHECKED_VALUES:,} values to check before the first trial"
        yield Problem("sweep.space", message, suggestion="remove values, or use ranges")
        return
    existing: dict[str, Sequence[Problem]] = {}
    for name, domain in space.items():
        values_around = choose_context(name, space)
        key = json.dumps(values_around)
        if key not in existing:
            existing[key] = _check_experiment_with(values_around, data)
        problems: dict[tuple[str, str], Problem] = {}
        for value in domain.candidates():
            values = {**values_around, name: value}
            others = [other for other in space if other not in values]
            for problem in _check_experiment_with(values, data):
                path = f"{problem.path}."
                is_elsewhere = any(
                    path.startswith(f"{other}.") or f"{other}.".startswith(path) for other in others
                )
                if problem not in existing[key] and not is_elsewhere:
                    message = make_relative_message(name, problem)
                    is_unbounded = domain.kind == "normal" and len(domain.values) == 2
                    hint = (
                        "write normal: [mean, sd, low, high]"
                        if is_unbounded
                        else problem.suggestion
                    )
                    located = Problem(join("sweep.space", name), message, suggestion=hint)
                    problems.setdefault((problem.path, problem.code or message), located)
        yield from problems.values()


def _check_experiment_with(values: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[Problem]:
    try:
        for name, value in values.items():
            data = with_value(data, name, value)
        data = with_inferred_modes(data)
        build(check_sections({key: value for key, value in data.items() if key != "sweep"}))
    except ConfigError as error:
        return error.problems
    return ()
