"""Settings of hooks that a run ends before it reaches."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hooks.interval import Interval
from hooks.metrics.names import find_phase
from orchestrator.errors import Problem
from orchestrator.experiment.sections.experiment import Experiment


def find_unreached_settings(experiment: Experiment) -> Iterator[Problem]:
    """Yield a problem, for a warning, for each `begin` and `patience` of a hook that the run never
    reaches."""
    space = experiment.sweep.space if experiment.sweep else {}
    if {"epochs", "steps", "validate_every"} & space.keys():
        return
    length = Interval(experiment.epochs or 0)
    if experiment.steps is not None:
        length = Interval(experiment.steps, "steps")

    swept = {path.split(".")[1] for path in space if path.startswith("hooks.")}
    for name, entry in experiment.hooks.items():
        if name in swept:
            continue
        for key, wait in _list_waits(entry or {}, experiment.validate_every):
            if wait.unit == length.unit and wait.count >= length.count:
                reason = f"because the run ends after {length}"
                yield Problem(f"hooks.{name}.{key}", f"{entry[key]} is never reached, {reason}")


def _list_waits(
    entry: Mapping[str, Any], validate_every: Interval
) -> Iterator[tuple[str, Interval]]:
    """Yield each key that makes a hook wait, and its minimum length."""
    begin = entry.get("begin")
    every = entry.get("every")
    with suppress(ValueError):  # another hook's parameter of this name
        if isinstance(begin, str):
            yield "begin", Interval.parse(begin)
        elif isinstance(begin, int) and isinstance(every, str):
            # The number of the first epoch or step.
            yield "begin", Interval(begin - 1, Interval.parse(every).unit)
    if entry.get("type") == "early_stopping" and find_phase(entry["monitor"]) == "val":
        yield "patience", Interval(entry["patience"] * validate_every.count, validate_every.unit)
