"""Settings of hooks that a run ends before reaching: no errors, as a trial run is often shorter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from hooks.interval import Interval
from hooks.metrics.names import phase_of
from orchestrator.config.sections.experiment import Experiment


def unreached_settings(experiment: Experiment) -> Iterator[str]:
    """Yield a warning for each `begin` of a hook and `patience` of early stopping that a resolved run never reaches."""
    length = Interval(experiment.epochs or 0) if experiment.steps is None else Interval(experiment.steps, "steps")
    every, space = experiment.validate_every, experiment.sweep.space if experiment.sweep else {}
    if "epochs" in space or "steps" in space:
        return
    ending = f"is never reached, because the run ends after {length}"
    for name, entry in experiment.hooks.items():
        begin = _begin(entry) if entry else None
        if begin and begin.unit == length.unit and begin.count >= length.count:
            yield f"hooks.{name}.begin: {entry['begin']} {ending}"
        is_stopping = entry and entry["type"] == "early_stopping" and phase_of(entry["monitor"]) == "val"
        if is_stopping and every.unit == length.unit and entry["patience"] * every.count >= length.count:
            yield f"hooks.{name}.patience: {entry['patience']} {ending}"


def _begin(entry: Mapping[str, Any]) -> Interval | None:
    """Return what a run completes before a hook begins; None if the hook has no such parameter."""
    begin, every = entry.get("begin"), entry.get("every")
    with suppress(ValueError):
        if isinstance(begin, str):
            return Interval.parse(begin)
        if isinstance(begin, int) and isinstance(every, str):  # the number of the first epoch or step
            return Interval(begin - 1, Interval.parse(every).unit)
    return None
