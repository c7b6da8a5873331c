"""The first difference between two recorded trainings, and its causes."""

import math

from orchestrator.replay.recorded_training import TrainingRecord
from orchestrator.units import get_unit

_MAX_CAUSES = 6


def find_difference(whole: TrainingRecord, other: TrainingRecord) -> str:
    """Return the first difference in samples, losses, metrics, or the state at the end; empty if
    there is none.

    Args:
        whole: Record of all iterations.
        other: Record of the same training, perhaps only of its last iterations.
    """
    for compare in (_compare_iterations, _compare_metrics, _compare_ends):
        difference = compare(whole, other)
        if difference:
            return difference
    return ""


def _compare_iterations(whole: TrainingRecord, other: TrainingRecord) -> str:
    for iteration, loss in other.losses.items():
        if other.samples[iteration] != whole.samples.get(iteration):
            return f"the samples of iteration {iteration} differ"
        expected = whole.losses[iteration]
        both_are_nan = math.isnan(loss) and math.isnan(expected)
        if loss != expected and not both_are_nan:
            return f"the loss of iteration {iteration} is {loss}, not {expected}"
    return ""


def _compare_metrics(whole: TrainingRecord, other: TrainingRecord) -> str:
    for iteration, metrics in other.metrics.items():
        expected = whole.metrics.get(iteration, {})
        for name, value in metrics.items():
            is_compared = isinstance(value, float) and _is_repeatable(name)
            # By their text, because NaN differs from itself.
            if is_compared and repr(value) != repr(expected.get(name)):
                return f"{name} after iteration {iteration} is {value}, not {expected.get(name)}"
    return ""


def _compare_ends(whole: TrainingRecord, other: TrainingRecord) -> str:
    names = {**whole.end, **other.end}
    different = [name for name in names if whole.end.get(name) != other.end.get(name)]
    return f"at the end {', '.join(different[:4])} differ" if different else ""


def _is_repeatable(metric: str) -> bool:
    """Return whether a metric has no unit of time, speed or memory, in which runs differ."""
    return not get_unit(metric)


def find_causes(whole: TrainingRecord, resumed: TrainingRecord, iteration: int) -> list[str]:
    """Return a line for each value that differed when training continued."""
    before = whole.state.get(iteration, {})
    after = resumed.state.get(iteration, {})
    changed = [path for path in before if path in after and before[path] != after[path]]
    missing = [path for path in before if path not in after]
    lines = [f"{path} is not restored: {_advise(path)}" for path in changed]
    lines += [f"{path} does not exist after the restore: {_advise(path)}" for path in missing]
    return lines[:_MAX_CAUSES]


def _advise(path: str) -> str:
    root = path.partition(".")[0]
    if root == "task":
        return "make it a part of the model, or return it from the task's state_dict()"
    if root == "hooks":
        return "name it in the hook's state_fields, or rank_state_fields if ranks differ"
    if root == "optimizer":
        return "return it from the optimizer's state_dict()"
    if root == "model":
        return "register it as a buffer, or compute it from the input"
    return "draw from torch, numpy.random or random, and derive the rest from the index or from set_epoch(epoch)"


def find_other_causes(
    whole: TrainingRecord, again: TrainingRecord, loader_workers: int
) -> list[str]:
    """Return causes that no value of the training process shows."""
    if difference := find_difference(whole, again):
        cause = "the time, an unseeded generator, the order of a set, or operations that are not deterministic"
        return [
            f"a second run from the beginning differs too ({difference}): training depends on {cause}"
        ]
    if loader_workers:
        names = ", such as numpy.random there"
        if whole.suspects:
            names = f", such as {', '.join(whole.suspects)}"
        advice = "derive them from the index, or draw from the generators that the loop seeds for each batch"
        return [f"samples depend on state in the DataLoader workers{names}: {advice}"]
    return [
        "training depends on state outside the attributes of task, data, model, optimizer and hooks"
    ]
