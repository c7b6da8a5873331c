"""Domains of a space that the search cannot sample or that overlap, and points to try first."""

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.errors import Problem, shorten, shorten_value
from orchestrator.experiment.sections.domain import Domain
from orchestrator.experiment.sections.sweep import SweepSettings
from orchestrator.experiment.sweep.space import find_enclosing_path, leaves_open
from orchestrator.experiment.yaml.dotted_paths import join
from orchestrator.nearest_names import did_you_mean


def find_unsearchable(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield a problem for each domain that the search cannot sample."""
    alternatives = {"grid": "choice", "normal": "uniform"}
    for name, domain in sweep.space.items():
        path = f"sweep.space.{name}.{domain.kind}"
        if sweep.search.type == "grid" and not domain.is_list:
            hint = "use choice or grid, or search: random"
            yield Problem(path, f"is not supported with search: grid; {hint}")
        if sweep.search.type == "optuna" and domain.kind in alternatives:
            hint = f"use {alternatives[domain.kind]}"
            yield Problem(path, f"is not supported with search: optuna; {hint}")


def find_overlaps(sweep: SweepSettings) -> Iterator[Problem]:
    """Yield a problem for each path inside a swept path, unless that is off or on."""
    for inner in sweep.space:
        enclosing = [outer for outer in sweep.space if inner.startswith(f"{outer}.")]
        messages = [_explain_overlap(inner, outer, sweep) for outer in enclosing]
        reasons = [message for message in messages if message]
        if reasons:
            yield Problem(f"sweep.space.{inner}", reasons[-1])


def _explain_overlap(inner: str, outer: str, sweep: SweepSettings) -> str | None:
    domain = sweep.space[inner]
    around = sweep.space[outer]
    start = f"is inside '{outer}', which"
    if find_enclosing_path(outer, sweep.space):
        return f"{start} is itself inside a swept path; sweep only one of them"
    if around.kind == "fan_out":
        return f"{start} is a fan_out; use grid for it"
    if domain.kind == "fan_out":
        return f"{start} is swept too; use grid instead of fan_out"
    if not _is_switch(around):
        return f"{start} is swept too and is not a choice of null and mappings"
    if not any(leaves_open(inner, outer, value) for value in around.values):
        return f"is never sampled: every value of '{outer}' is off or sets it"
    if around.kind == "choice" and sweep.search.type != "grid" and domain.kind == "grid":
        return f"is a grid inside '{outer}', which is sampled; use choice"
    return None


def _is_switch(domain: Domain) -> bool:
    """Return whether each value turns a part of the experiment off or on."""
    values = domain.values if domain.is_list else [domain]
    return all(value is None or isinstance(value, bool | dict) for value in values)


def check_point(point: Mapping[str, Any], path: str, sweep: SweepSettings) -> Iterator[Problem]:
    """Yield the problems of a point to try first."""
    for name, value in point.items():
        place = join(path, name)
        domain = sweep.space.get(name)
        if domain is None:
            hint = did_you_mean(name, sweep.space)
            yield Problem(place, "is not in the space", suggestion=hint)
        elif domain.kind == "fan_out":
            yield Problem(
                place, "cannot be in a point: each point runs with all fan_out values; remove it"
            )
        elif value not in domain:
            allowed = shorten(str(domain))
            yield Problem(place, f"must be within {allowed}, got {shorten_value(value)}")
