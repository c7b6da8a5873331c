"""Checks of the values of a sweep's space, each in the experiment that a trial gets with it."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.errors import Problem, collect_problems
from orchestrator.experiment.checks.changes import make_relative_message
from orchestrator.experiment.checks.metric_modes import with_inferred_modes
from orchestrator.experiment.fields.messages import INTEGER_CODES
from orchestrator.experiment.read_sections import make_sections
from orchestrator.experiment.resolve import ResolvedExperiment, resolve_sections
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import choose_context, leaves_open, sort_outer_first
from orchestrator.experiment.yaml.dotted_paths import is_within, join, with_value

MAX_CHECKED_VALUES = 5_000
"""Values of a space to check before the first trial."""
_MAX_TRIED_VALUES = 20
"""Values of other paths with which a problem is looked for again."""
_INTEGER_KINDS = {"uniform": "randint", "loguniform": "lograndint"}
"""Ranges of integers, by the ranges of numbers to replace with them."""

Visit = Callable[[str, ResolvedExperiment], None]
"""Takes a swept path and the experiment with one of its values, if that can be made."""


def check_values(
    space: Mapping[str, Domain], data: Mapping[str, Any], visit: Visit | None = None
) -> Iterator[Problem]:
    """Check each listed value and both ends of each range in the experiment, one at a time."""
    if sum(len(domain.list_candidates()) for domain in space.values()) > MAX_CHECKED_VALUES:
        yield Problem(
            "sweep.space",
            f"has more than {MAX_CHECKED_VALUES:,} values to check before the first trial",
            suggestion="remove values, or use ranges",
        )
        return
    check = _ValueCheck(space, data, visit)
    for name in space:
        yield from check.find_problems(name, "sweep.space")


def check_repeated_values(sweep: SweepSettings, data: Mapping[str, Any]) -> Iterator[Problem]:
    """Check each value of `repeats` in the experiment, unless they are seeds."""
    if isinstance(sweep.repeats, int):
        return
    name = sweep.repeated_path
    space = {**sweep.space, name: Domain.model_validate({"choice": sweep.repeats[name]})}
    yield from _ValueCheck(space, data).find_problems(name, "sweep.repeats")


class _ValueCheck:
    """A check of the values of a space, each by building the experiment with it."""

    def __init__(
        self, space: Mapping[str, Domain], data: Mapping[str, Any], visit: Visit | None = None
    ) -> None:
        self._space = space
        self._data = data
        self._visit = visit
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
            for problem in self._find_problems_with(name, values):
                message = make_relative_message(name, problem)
                mistake = problem.path, problem.code or message
                if problem in known or mistake in reported:
                    continue
                if self._may_vanish(problem, name, values, others):
                    continue
                reported.add(mistake)
                message, hint = _explain(problem, message, self._space[name])
                yield Problem(join(section, name), message, suggestion=hint)

    def _find_problems_without(self, context: Mapping[str, Any]) -> list[Problem]:
        key = json.dumps(context)
        if key not in self._problems_without:
            problems: list[Problem] = []
            collect_problems(problems, _build_experiment_with, context, self._data)
            self._problems_without[key] = problems
        return self._problems_without[key]

    def _may_vanish(
        self, problem: Problem, name: str, values: Mapping[str, Any], others: Sequence[str]
    ) -> bool:
        """Return whether a problem of a value may come from other swept paths, which have no value
        yet: it is not there with some of their values."""
        candidates = {
            other: self._space[other].list_candidates()
            for other in sort_outer_first(self._space)
            if other in others and _is_about(problem.path, other)
        }
        if not candidates:
            return False
        longest = max(len(choices) for choices in candidates.values())
        for position in range(min(longest, _MAX_TRIED_VALUES)):
            chosen = {
                other: choices[min(position, len(choices) - 1)]
                for other, choices in candidates.items()
            }
            if problem not in self._find_problems_with(name, {**values, **chosen}):
                return True
        return False

    def _find_problems_with(self, name: str, values: Mapping[str, Any]) -> list[Problem]:
        problems: list[Problem] = []
        resolved = collect_problems(problems, _build_experiment_with, values, self._data)
        if resolved and self._visit:
            self._visit(name, resolved)
        return problems


def _explain(problem: Problem, message: str, domain: Domain) -> tuple[str, str | None]:
    """Return the message and the hint for a problem of a value from a domain."""
    # A field that takes several types has several codes.
    first_code = problem.code.partition(" or ")[0]
    if first_code in INTEGER_CODES and not domain.is_list:
        message = f"must be an integer, but {domain.kind} samples any number"
        return message, _suggest_integers(domain)
    if domain.kind == "normal" and len(domain.values) == 2:
        return message, "write normal: [mean, sd, low, high]"
    return message, problem.suggestion


def _suggest_integers(domain: Domain) -> str | None:
    """Return advice to sample the integers of a range; None if there are none in it."""
    if domain.kind not in _INTEGER_KINDS:
        return "use randint or lograndint"
    low, high = domain.ends
    first = math.ceil(low)
    last = math.floor(high)
    if first > last:
        return None
    return f"write {_INTEGER_KINDS[domain.kind]}: [{first}, {last + 1}]"


def _is_sampled_with(path: str, name: str, value: Any) -> bool:
    """Return whether `path` is sampled in a trial in which `name` has the value."""
    return not path.startswith(f"{name}.") or leaves_open(path, name, value)


def _is_about(path: str, other: str) -> bool:
    """Return whether a problem's path is at, above or below another one."""
    return is_within(path, other) or is_within(other, path)


def _build_experiment_with(
    values: Mapping[str, Any], data: Mapping[str, Any]
) -> ResolvedExperiment:
    """Build the experiment of a trial, or raise ConfigError."""
    for name, value in values.items():
        data = with_value(data, name, value)
    data = with_inferred_modes(data)
    return resolve_sections(
        make_sections({key: value for key, value in data.items() if key != "sweep"})
    )
