"""The causes of a difference between an uninterrupted training and one that continued."""

from collections.abc import Mapping

from orchestrator.replay.differences import Difference, find_difference
from orchestrator.replay.digests import Kind, Value
from orchestrator.replay.training_record import TrainingRecord

_MAX_CAUSES = 6

_USE_GLOBAL_GENERATORS = (
    "use the global generators of torch, numpy and random, and derive the rest from the index or"
    " from set_epoch(epoch)"
)
_ADVICE: Mapping[Kind, str] = {
    "task": "make it a part of the model, or return it from the task's state_dict()",
    "data": _USE_GLOBAL_GENERATORS,
    "hook": "name it in the hook's state_fields, or rank_state_fields if ranks differ",
    "optimizer": "return it from the optimizer's state_dict()",
    "model": "register it as a buffer, or compute it from the input",
    "module": _USE_GLOBAL_GENERATORS,
}


def find_unrestored(before: Mapping[str, Value], after: Mapping[str, Value]) -> list[str]:
    """Return a line for each value that a checkpoint does not restore.

    Args:
        before: Values when the uninterrupted training went on after the checkpoint.
        after: Values when training continued from it.
    """
    lines = [
        f"{path} is not restored: {_ADVICE[value.kind]}"
        for path, value in before.items()
        if path in after and value != after[path]
    ]
    lines += [
        f"{path} does not exist after the restore: {_ADVICE[value.kind]}"
        for path, value in before.items()
        if path not in after
    ]
    if len(lines) > _MAX_CAUSES:
        lines[_MAX_CAUSES:] = [f"and {len(lines) - _MAX_CAUSES} more"]
    return lines


def find_nondeterminism(uninterrupted: TrainingRecord, second: TrainingRecord) -> str | None:
    """Return why training is not even repeated from the beginning, as in `second`; None if it is."""
    difference = find_difference(uninterrupted, second)
    if difference is None:
        return None
    return (
        f"a second run from the beginning differs too ({difference.text}): training depends on the"
        " time, an unseeded generator, the order of a set, or operations that are not deterministic"
    )


def explain_hidden_state(
    difference: Difference, state: Mapping[str, Value], loader_workers: int
) -> str:
    """Return the cause of a difference for which no value of the training process accounts.

    `state` has the values when training went on after the checkpoint.
    """
    if difference.part != "samples" or not loader_workers:
        return (
            "training depends on state outside the attributes of task, data, model, optimizer and"
            " hooks"
        )
    generators = [path for path, value in state.items() if _may_choose_samples(value)]
    examples = ", ".join(generators) or "numpy.random there"
    return (
        f"samples depend on state in the DataLoader workers, such as {examples}: derive them from"
        " the index, or use the global generators, which the loop seeds for each batch"
    )


def _may_choose_samples(value: Value) -> bool:
    return value.is_generator and value.kind in ("data", "module")
