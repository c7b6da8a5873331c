"""What is wrong with a sweep beyond its own model: values are tried in the experiment they are for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.changes import seen_from
from orchestrator.config.parameters import check
from orchestrator.config.reader import join
from orchestrator.config.resolve import attempt, build
from orchestrator.config.source import ExperimentSource, lay
from orchestrator.config.space import Domain, overlaps, surroundings, wrong_domain, wrong_mutations
from orchestrator.config.sweep import Sweep
from orchestrator.errors import ConfigError, Problem, did_you_mean


def sweep_problems(source: ExperimentSource, known: Sequence[Problem]) -> list[Problem]:
    """What is wrong with a sweep beyond its own model: domains, points, and what a population would change; `known` is
    what is wrong with the experiment below it."""
    data, _ = source.laid()
    given = data.pop("sweep", None)
    sweep = attempt([], check, Sweep, given, "sweep") if isinstance(given, dict) else None
    if sweep is None:
        return []
    workers = data.get("workers")
    if sweep.engine == "gang" and isinstance(workers, dict) and isinstance(workers.get("count"), list):
        return [Problem("workers.count", f"a gang has one number of ranks, got {workers['count']}; engine: train takes a range")]
    wrong = {name: wrong_domain(name, domain, sweep.search) for name, domain in sweep.space.items()}
    problems = [problem for problem in wrong.values() if problem]
    sound = sweep.model_copy(update={"space": {name: sweep.space[name] for name, problem in wrong.items() if not problem}})
    problems.extend(overlaps(sound) or ([] if problems else wrong_mutations(sweep)))
    for name in sound.space:
        domain = Domain.of(sweep.space[name])
        problems.extend(_refused(name, domain, domain.candidates(), join("sweep.space", name), sound, data, known))
    for index, point in enumerate(sweep.points if len(sound.space) == len(sweep.space) else ()):
        problems.extend(_wrong_point(point, f"sweep.points.{index}", sweep, data, known))
    return problems


def _wrong_point(
    point: Mapping[str, Any], path: str, sweep: Sweep, data: Mapping[str, Any], known: Sequence[Problem]
) -> list[Problem]:
    problems = []
    for name, value in point.items():
        if name not in sweep.space:
            hint = did_you_mean(name, sweep.space)
            problems.append(Problem(join(path, name), "is no path of the space", suggestion=hint))
            continue
        domain = Domain.of(sweep.space[name])
        if not domain.holds(value):
            problems.append(Problem(join(path, name), f"is not in its domain {sweep.space[name]}, got {value!r}"))
            continue
        problems.extend(_refused(name, domain, [value], join(path, name), sweep, data, known))
    return problems


def _refused(
    name: str,
    domain: Domain,
    values: Iterable[Any],
    path: str,
    sweep: Sweep,
    data: Mapping[str, Any],
    known: Sequence[Problem],
) -> list[Problem]:
    """Tries values of one path in the experiment they are for, one at a time; tells each problem once, at `path`.

    A path inside a choice is tried with each value of the choice that leaves it to be drawn.
    """
    problems: dict[str, Problem] = {}
    for value in values:
        for around in surroundings(name, sweep.space):
            for problem in _problems_with({**around, name: value}, data):
                if problem not in known and _is_about(problem.path, name, list(sweep.space)):
                    message = _as_told_of(domain, seen_from(name, problem))
                    problems.setdefault(message, replace(problem, path=path, message=message))
    return list(problems.values())


def _problems_with(values: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[Problem]:
    """What is wrong with an experiment that has these values, by dotted path."""
    try:
        for name, value in values.items():
            data = lay(data, name, value)
        build(data)
    except ConfigError as error:
        return error.problems
    return ()


def _as_told_of(domain: Domain, message: str) -> str:
    if domain.kind != "normal" or len(domain.values) == 4:
        return message
    bound = message.partition(", got")[0]
    return f"a normal distribution has no ends, and this {bound}; clip it: {{normal: [mean, sd, low, high]}}"


def _is_about(path: str, name: str, names: Sequence[str]) -> bool:
    """Whether a problem at `path` is due to the value of `name` alone.

    A problem of the whole component (a check across its fields) counts only where nothing else of it is swept: other
    values of the others may make it right.
    """
    if path == name or path.startswith(f"{name}.") or not path:
        return True
    component = _component_of(name)
    return _component_of(path) == component and sum(_component_of(other) == component for other in names) == 1


def _component_of(path: str) -> str:
    keys = path.split(".")
    return ".".join(keys[:2]) if keys[0] == "hooks" else keys[0]
