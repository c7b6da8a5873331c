"""What is wrong with a sweep beyond its own model: values are tried in the experiment they are for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import OnErrorOmit, model_validator

from orchestrator.config.checks.custom_training import declared
from orchestrator.config.checks.metric_modes import inferred_modes
from orchestrator.config.checks.shared_training import unshareable_paths
from orchestrator.config.checks.space import (
    is_drawn,
    outer_of,
    overlaps,
    surroundings,
    unsearchable,
    wrong_counts,
    wrong_mutations,
)
from orchestrator.config.optim.changes import seen_from
from orchestrator.config.python.parameters import check
from orchestrator.config.resolve import build, find_task
from orchestrator.config.sections.domain import Domain
from orchestrator.config.sections.sweep import Sweep, SweptPath, contradictions
from orchestrator.config.text.bounds import LARGEST_SEED, MOST_SWEPT, MOST_TRIED
from orchestrator.config.text.reader import join
from orchestrator.config.text.source import ExperimentSource, with_value
from orchestrator.errors import ConfigError, Problem, collect_problems, did_you_mean, shortened
from orchestrator.task import trains_itself


class _AsFarAsSound(Sweep):
    """A sweep without the domains that are wrong by themselves, in which all else may contradict each other: one
    mistake hides no other."""

    space: dict[OnErrorOmit[SweptPath], OnErrorOmit[Domain]]

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        return self


def sweep_problems(source: ExperimentSource, known: Sequence[Problem]) -> list[Problem]:
    """What is wrong with a sweep beyond its own model: domains, points, and what a population would change; `known` is
    what is wrong with the experiment below it."""
    data, _ = source.merged()
    given = data.pop("sweep", None)
    space = given.get("space") if isinstance(given, dict) else None
    if isinstance(space, dict) and len(space) > MOST_SWEPT:
        return []
    if isinstance(given, dict) and (mode := inferred_modes({**data, "sweep": given}).get("sweep.mode")):
        given = {**given, "mode": mode}
    problems: list[Problem] = []
    sweep = collect_problems(problems, check, _AsFarAsSound, given, "sweep") if isinstance(given, dict) else None
    wrong = {problem.path.split(".")[1] for problem in problems if "." in problem.path}
    if sweep is None and wrong:
        sound = {key: value for key, value in given.items() if key not in wrong}
        sweep = collect_problems([], check, _AsFarAsSound, sound, "sweep")
    problems = [problem for problem in problems if problem not in known]
    if sweep is None:
        return problems
    clashes = [(keys, message) for keys, message in contradictions(sweep) if not wrong.intersection(keys)]
    if clashes and all(problem.path != "sweep" for problem in known):
        problems.append(Problem("sweep", "; ".join(message for _, message in clashes)))
    if wrong.intersection(["metric", "mode"]) or any("mode" in keys for keys, _ in clashes):
        sweep = sweep.model_copy(update={"metric": "unknown", "mode": "max"})
    workers = data.get("workers")
    if sweep.engine == "gang" and isinstance(workers, dict) and isinstance(workers.get("count"), list):
        return [
            Problem(
                "workers.count", f"a gang has one number of ranks, got {workers['count']}; engine: train takes a range"
            )
        ]
    problems.extend([*(() if "search" in wrong else unsearchable(sweep)), *overlaps(sweep)])
    is_whole = len(sweep.space) == len(given["space"])
    if is_whole and not problems and not wrong:
        task = find_task(data)
        also = ("task_args", *declared(task)) if task and trains_itself(task) else ()
        problems.extend([*wrong_counts(sweep), *wrong_mutations(sweep, also)])
    last_seed = data["seed"] + sweep.repeats - 1 if type(data.get("seed")) is int else 0
    if sweep.repeats > 1 and last_seed > LARGEST_SEED:
        problems.append(
            Problem(
                "sweep.repeats",
                f"gives the last of each configuration's trials the seed {last_seed:,}; {LARGEST_SEED:,} is the"
                " largest",
            )
        )
    collect_problems(problems, _try_all, sweep, source.without_sweep(), known, problems, is_whole)
    if is_whole and not problems and not known:
        problems.extend(unshareable_paths(source, sweep))
    return problems


def _try_all(
    sweep: Sweep, source: ExperimentSource, known: Sequence[Problem], problems: list[Problem], with_points: bool
) -> None:
    """Adds what is wrong with the values of each domain and point; raises ConfigError where there are too many."""
    tries = _Tries(source, sweep)
    for name, domain in sweep.space.items():
        problems.extend(_refused(name, domain.candidates(), join("sweep.space", name), tries, known))
    for index, point in enumerate(sweep.points if with_points else ()):
        problems.extend(_wrong_point(point, f"sweep.points.{index}", tries, known))


class _Tries:
    """Builds experiments of a sweep's values, as many as the bounds allow."""

    def __init__(self, source: ExperimentSource, sweep: Sweep) -> None:
        self.sweep, self._source = sweep, source
        self._count = 0

    def problems_with(self, values: Mapping[str, Any]) -> Sequence[Problem]:
        """What is wrong with an experiment that has these values, by dotted path."""
        self._count += 1
        if self._count > MOST_TRIED:
            raise _too_many()
        return _problems_with(values, self._source, self.sweep)

    def beside(self, name: str) -> list[dict[str, Any]]:
        """What a path may be drawn beside."""
        found = list(itertools.islice(surroundings(name, self.sweep.space), MOST_TRIED + 1))
        if len(found) > MOST_TRIED:
            raise _too_many()
        return found


def _too_many() -> ConfigError:
    message = f"has more than {MOST_TRIED:,} values and combinations to try in the experiment before the first trial"
    return ConfigError(
        [Problem("sweep.space", message, suggestion="leave values out, or give ranges, of which the ends are tried")]
    )


def _wrong_point(point: Mapping[str, Any], path: str, tries: _Tries, known: Sequence[Problem]) -> list[Problem]:
    problems, sweep = [], tries.sweep
    for name, value in point.items():
        if name not in sweep.space:
            hint = did_you_mean(name, sweep.space)
            problems.append(Problem(join(path, name), "is no path of the space", suggestion=hint))
            continue
        if sweep.space[name].kind == "fan_out":
            problems.append(
                Problem(
                    join(path, name),
                    "does not belong in a point: each point is tried with every `fan_out` value; remove it",
                )
            )
            continue
        if value not in sweep.space[name]:
            problems.append(
                Problem(
                    join(path, name),
                    f"is not in its domain {shortened(str(sweep.space[name].model_dump()))}, got"
                    f" {shortened(repr(value))}",
                )
            )
            continue
        problems.extend(_refused(name, [value], join(path, name), tries, known, point))
    return problems


def _refused(
    name: str,
    values: Sequence[Any],
    path: str,
    tries: _Tries,
    known: Sequence[Problem],
    point: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Tries values of one path in the experiment they are for, one at a time, beside each value of what decides their
    meaning (the task for its arguments), as far as the `point` they are of leaves that open; gives each problem once,
    at `path`."""
    space = tries.sweep.space
    beside = [around for around in tries.beside(name) if {**around, **(point or {})}.items() >= around.items()]
    found: dict[str, tuple[Problem, list[dict[str, Any]]]] = {}
    for around in beside:
        before = [*known, *(one for one in tries.problems_with(around) if not _within(one.path, name))]
        for value in values:
            tried = {**around, name: value}
            for problem in tries.problems_with(tried):
                if problem not in before and not _may_be_mended(problem.path, tried, space):
                    message = _message_for(space[name], seen_from(name, problem))
                    found.setdefault(message, (problem, []))[1].append(around)
    problems: list[Problem] = []
    for message, (problem, where) in found.items():
        common = all(around in where for around in beside)
        place = (
            "" if common else f", where {' and '.join(f'{other} is {value!r}' for other, value in where[0].items())}"
        )
        hint = _fitting_domain(space[name], message) or problem.suggestion
        if all(one.suggestion != hint or not hint for one in problems):
            problems.append(replace(problem, path=path, message=message + place, suggestion=hint))
    return problems


def _fitting_domain(domain: Domain, message: str) -> str | None:
    """What to write instead of a range whose numbers a field does not take."""
    if domain.is_list or not message.startswith("must be "):
        return None
    wanted = message.removeprefix("must be ").partition(", got")[0]
    if wanted != "a whole number":
        return (
            None
            if wanted.startswith(("a number", "at ", "greater", "less", "finite", "a multiple"))
            else "a range is of numbers; write choice"
        )
    if domain.kind.startswith("q"):
        return f"write {domain.kind} with low, high and step in whole numbers"
    kind = "lograndint" if domain.is_logarithmic else "randint"
    low, high = domain.ends
    whole = float(low).is_integer() and float(high).is_integer()
    return (
        f"write {{{kind}: [{low:.0f}, {high + 1:.0f}]}}, high not included"
        if whole
        else f"write {kind}, in whole numbers, high not included"
    )


def _problems_with(values: Mapping[str, Any], source: ExperimentSource, sweep: Sweep) -> Sequence[Problem]:
    """What is wrong with an experiment that has these values, by dotted path."""
    try:
        data, problems = source.with_values(values).merged()
        if problems:
            return problems
        for name, mode in inferred_modes(data, sweep).items():
            data = with_value(data, name, mode)
        build(data)
    except ConfigError as error:
        return error.problems
    return ()


def _message_for(domain: Domain, message: str) -> str:
    if domain.kind != "normal" or len(domain.values) == 4:
        return message
    bound = message.partition(", got")[0]
    if bound == "must be a whole number":
        return bound
    return f"a normal distribution has no ends, and this {bound}; clip it: {{normal: [mean, sd, low, high]}}"


def _may_be_mended(path: str, tried: Mapping[str, Any], space: Mapping[str, Any]) -> bool:
    """Whether a problem at `path` depends on a path of the space that was not tried along: other values may make it
    right."""
    others = (name for name in space if name not in tried and (_within(path, name) or _within(name, path)))
    return any(outer_of(other, space) not in tried or is_drawn(other, space, tried) for other in others)


def _within(path: str, other: str) -> bool:
    """Whether a path is another one, or lies below it."""
    return path == other or path.startswith(f"{other}.")
