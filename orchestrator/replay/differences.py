"""The first difference between two recorded trainings."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from hooks.parameter_names import join_names
from orchestrator.replay.training_record import TrainingRecord
from orchestrator.units import get_unit


@dataclass(frozen=True)
class Difference:
    """The first difference of a repeated training."""

    part: Literal["samples", "loss", "metric", "end"]
    text: str


def find_difference(uninterrupted: TrainingRecord, repeated: TrainingRecord) -> Difference | None:
    """Return the first difference in samples, losses, metrics, or the state at the end.

    `repeated` may have only the last iterations.
    """
    return (
        _compare_iterations(uninterrupted, repeated)
        or _compare_metrics(uninterrupted, repeated)
        or _compare_ends(uninterrupted.end, repeated.end)
    )


def _compare_iterations(
    uninterrupted: TrainingRecord, repeated: TrainingRecord
) -> Difference | None:
    for iteration, loss in repeated.losses.items():
        if repeated.samples[iteration] != uninterrupted.samples.get(iteration):
            return Difference("samples", f"the samples of iteration {iteration} differ")
        expected = uninterrupted.losses[iteration]
        if _differ(loss, expected):
            text = f"the loss of iteration {iteration} is {loss}, not {expected}"
            return Difference("loss", text)
    return None


def _compare_metrics(uninterrupted: TrainingRecord, repeated: TrainingRecord) -> Difference | None:
    for iteration, metrics in repeated.metrics.items():
        expected = uninterrupted.metrics.get(iteration, {})
        for name, value in metrics.items():
            if _is_repeatable(name, value) and _differ(value, expected.get(name)):
                text = f"{name} after iteration {iteration} is {value}, not {expected.get(name)}"
                return Difference("metric", text)
    return None


def _compare_ends(
    uninterrupted: Mapping[str, str], repeated: Mapping[str, str]
) -> Difference | None:
    names = {**uninterrupted, **repeated}
    different = [name for name in names if uninterrupted.get(name) != repeated.get(name)]
    if not different:
        return None
    return Difference("end", f"the end of training differs in {join_names(different, 4)}")


def _is_repeatable(metric: str, value: Any) -> bool:
    """Return whether a metric is a number without a unit of time, speed or memory, in which runs
    differ."""
    return isinstance(value, Real) and not get_unit(metric)


def _differ(value: Any, expected: Any) -> bool:
    # By their text, because NaN differs from itself.
    return repr(value) != repr(expected)
