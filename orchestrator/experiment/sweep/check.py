"""Checks of a sweep: its settings together, and each value of its space in the experiment."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.errors import Problem, collect_problems, find_problems
from orchestrator.experiment.checked_sections import Sections, make_sections
from orchestrator.experiment.checks.changes import make_relative_message
from orchestrator.experiment.checks.metric_modes import with_inferred_modes
from orchestrator.experiment.fields.messages import INTEGER_CODES
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.resolve import resolve_sections
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.check_settings import check_settings
from orchestrator.experiment.sweep.check_space import (
    check_point,
    find_overlaps,
    find_unsearchable,
)
from orchestrator.experiment.sweep.mutation import check_mutation
from orchestrator.experiment.sweep.shared_training import find_unshareable_paths
from orchestrator.experiment.sweep.space import choose_context, leaves_open
from orchestrator.experiment.sweep.trial_counts import check_configuration_count, check_trial_count
from orchestrator.experiment.yaml.dotted_paths import is_within, join, with_value
from orchestrator.experiment.yaml.source import ExperimentSource

MAX_CHECKED_VALUES = 5_000
"""Values of a space to check before the first trial."""
_INTEGER_KINDS = {"uniform": "randint", "loguniform": "lograndint"}
"""Ranges of integers, by the ranges of numbers to replace with them."""


def check_sweep(
    source: ExperimentSource, sections: Sections, *, is_experiment_valid: bool
) -> Iterator[Problem]:
    """Yield the problems of a sweep beyond its fields."""
    data = sections.valid_data
    sweep = sections.experiment.sweep
    if sweep is None:
        partial = _read_valid_settings(sections)
        if partial:
            yield from _check_values(partial.space, data)
        return

    of_settings = [
        *_find_overridden_paths(source, sweep),
        *_check_sections(sweep, sections.experiment),
    ]
    yield from of_settings
    if of_settings:
        return

    data = {**data, **_write_objectives(sweep)}
    of_values = [*_check_values(sweep.space, data), *_check_repeated_values(sweep, data)]
    yield from of_values
    if is_experiment_valid and not of_values:
        yield from find_unshareable_paths(source, sweep)


def _check_sections(sweep: SweepSettings, experiment: Experiment) -> Iterator[Problem]:
    yield from check_settings(sweep, experiment)
    space_problems = [*find_unsearchable(sweep), *find_overlaps(sweep)]
    yield from space_problems
    if not space_problems:
        yield from check_configuration_count(sweep)
    if sweep.space and not space_problems:
        yield from check_trial_count(sweep)
        yield from check_mutation(sweep, experiment)
    for index, point in enumerate(sweep.points):
        yield from check_point(point, f"sweep.points.{index}", sweep)


def _find_overridden_paths(source: ExperimentSource, sweep: SweepSettings) -> Iterator[Problem]:
    overrides = dict(source.values)
    repeated = sweep.repeated_path
    if not isinstance(sweep.repeats, int) and overrides.get(repeated) is not None:
        yield Problem(repeated, "has no effect: sweep.repeats sets it in each trial; remove it")
    for path in sweep.space:
        if overrides.get(path) is not None:
            yield Problem(
                path,
                "has no effect: sweep.space sets it in each trial",
                suggestion=f"remove it, or keep it for all trials: sweep.space.{path}=null",
            )


def _write_objectives(sweep: SweepSettings) -> dict[str, Any]:
    """Return the part of the sweep that decides the modes of metrics in its trials."""
    try:
        modes = [mode for _, mode in sweep.objectives]
    except ValueError:  # an unknown mode is a separate problem
        return {}
    return {"sweep": {"metric": sweep.metric, "mode": modes}}


def _read_valid_settings(sections: Sections) -> SweepSettings | None:
    """Return the sweep without its wrong settings and domains, if enough is left."""
    written = sections.data.get("sweep")
    if not isinstance(written, Mapping):
        return None
    valid = dict(written)
    space = written.get("space")
    if isinstance(space, Mapping):
        valid["space"] = dict(space)
    for problem in sections.problems:
        _remove_setting(valid, problem.path)
    return collect_problems([], validate, SweepSettings, valid, "sweep")


def _remove_setting(settings: dict[str, Any], path: str) -> None:
    """Remove the setting, or the domain, that a problem is about."""
    for key in settings.keys() - {"metric", "space"}:
        if is_within(path, f"sweep.{key}"):
            del settings[key]
    space = settings.get("space")
    if isinstance(space, dict):
        for name in list(space):
            if is_within(path, f"sweep.space.{name}"):
                del space[name]


# Values


def _check_values(space: Mapping[str, Domain], data: Mapping[str, Any]) -> Iterator[Problem]:
    """Check each listed value and both ends of each range in the experiment, one at a time."""
    if sum(len(domain.list_candidates()) for domain in space.values()) > MAX_CHECKED_VALUES:
        yield Problem(
            "sweep.space",
            f"has more than {MAX_CHECKED_VALUES:,} values to check before the first trial",
            suggestion="remove values, or use ranges",
        )
        return
    check = _ValueCheck(space, data)
    for name in space:
        yield from check.find_problems(name, "sweep.space")


def _check_repeated_values(sweep: SweepSettings, data: Mapping[str, Any]) -> Iterator[Problem]:
    """Check each value of `repeats` in the experiment, unless they are seeds."""
    if isinstance(sweep.repeats, int):
        return
    name = sweep.repeated_path
    space = {**sweep.space, name: Domain.model_validate({"choice": sweep.repeats[name]})}
    yield from _ValueCheck(space, data).find_problems(name, "sweep.repeats")


class _ValueCheck:
    """A check of the values of a space, each by building the experiment with it."""

    def __init__(self, space: Mapping[str, Domain], data: Mapping[str, Any]) -> None:
        self._space = space
        self._data = data
        self._problems_without: dict[str, list[Problem]] = {}
        """Problems without the value to check, by the values that it depends on."""

    def find_problems(self, name: str, section: str) -> Iterator[Problem]:
        """Yield each problem that values of a path add, once; it is reported in `section`."""
        context = choose_context(name, self._space)
        known = self._find_problems_without(context)
        outside = [other for other in self._space if other != name and other not in context]
        reported: set[tuple[str, str]] = set()
        for value in self._space[name].list_candidates():
            others = [other for other in outside if _is_sampled_with(other, name, value)]
            values = {**context, name: value}
            for problem in find_problems(_build_experiment_with, values, self._data):
                message = make_relative_message(name, problem)
                mistake = problem.path, problem.code or message
                if problem in known or mistake in reported or _is_about(problem.path, others):
                    continue
                reported.add(mistake)
                message, hint = _explain(problem, message, self._space[name])
                yield Problem(join(section, name), message, suggestion=hint)

    def _find_problems_without(self, context: Mapping[str, Any]) -> list[Problem]:
        key = json.dumps(context)
        if key not in self._problems_without:
            problems = find_problems(_build_experiment_with, context, self._data)
            self._problems_without[key] = list(problems)
        return self._problems_without[key]


def _explain(problem: Problem, message: str, domain: Domain) -> tuple[str, str | None]:
    """Return the message and the hint for a problem of a value from a domain."""
    # A field that takes several types has several codes.
    first_code = problem.code.partition(" or ")[0]
    if first_code in INTEGER_CODES and domain.kind in _INTEGER_KINDS:
        low, high = domain.ends
        return (
            f"must be an integer, but {domain.kind} samples any number",
            f"write {_INTEGER_KINDS[domain.kind]}: [{math.ceil(low)}, {math.floor(high) + 1}]",
        )
    if domain.kind == "normal" and len(domain.values) == 2:
        return message, "write normal: [mean, sd, low, high]"
    return message, problem.suggestion


def _is_sampled_with(path: str, name: str, value: Any) -> bool:
    """Return whether `path` is sampled in a trial in which `name` has the value."""
    return not path.startswith(f"{name}.") or leaves_open(path, name, value)


def _is_about(path: str, others: Sequence[str]) -> bool:
    """Return whether a problem is at, above or below one of the paths."""
    return any(is_within(path, other) or is_within(other, path) for other in others)


def _build_experiment_with(values: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Build the experiment of a trial, or raise ConfigError."""
    for name, value in values.items():
        data = with_value(data, name, value)
    data = with_inferred_modes(data)
    resolve_sections(make_sections({key: value for key, value in data.items() if key != "sweep"}))
