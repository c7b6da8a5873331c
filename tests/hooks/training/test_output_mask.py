import math
from typing import Any

import pytest
import torch

from hooks import State
from hooks.training.output_mask import OutputMask
from tests.ranks import on_ranks

NO = -math.inf


def state_with(labels: Any, output: Any, phase: str = "val") -> State:
    batches = [(torch.zeros(len(one)), one) for one in labels]
    return State(phase=phase, output=output, fresh_batches=lambda phase: iter(batches))


def masked(labels: Any, output: Any) -> Any:
    state = state_with(labels, output)
    hook = OutputMask()
    hook.on_phase_start(state)
    hook.on_forward(state)
    return state.output


def test_absent_classes_are_masked_and_others_unchanged() -> None:
    output = torch.arange(10.0).reshape(2, 5)
    found = masked([torch.tensor([3, 1, 3]), torch.tensor([1])], output)
    assert found.tolist() == [[NO, 1, NO, 3, NO], [NO, 6, NO, 8, NO]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_masked_logits_keep_shape_and_dtype(dtype: torch.dtype) -> None:
    images = torch.ones(2, 3, 4, 5, dtype=dtype)
    labels = torch.tensor([[[0, 2], [-100, 255]]])  # of pixels, some to be ignored
    found = masked([labels], images)
    assert (found.dtype, found.shape) == (dtype, images.shape)
    assert found[:, 1].eq(NO).all()
    assert found[:, [0, 2]].eq(1).all()


def test_each_phase_has_its_own_classes_and_reads_its_labels_once() -> None:
    passes: list[str] = []

    def fresh(phase: str) -> Any:
        passes.append(phase)
        return iter([(None, torch.tensor([0] if phase == "val" else [1]))])

    state = State(fresh_batches=fresh)
    hook = OutputMask()
    found = []
    for state.phase in ("val", "test", "val", "test"):
        hook.on_phase_start(state)
        state.output = torch.zeros(1, 2)
        hook.on_forward(state)
        found.append(state.output.tolist()[0])
    assert found == [[0, NO], [NO, 0]] * 2
    assert passes == ["val", "test"]


def test_invalid_labels_or_logits_are_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"the labels, batch\[1\], must be class numbers, got torch.float32 of shape \(2, 3\)",
    ):
        masked([torch.zeros(2, 3)], None)
    with pytest.raises(ValueError, match=r"class numbers, got list"):
        masked([[1, 2]], None)
    with pytest.raises(
        TypeError, match=r"logits of shape \(B, C, ...\), or a list of such, got dict"
    ):
        masked([torch.tensor([1])], {"logits": torch.zeros(1, 2)})
    with pytest.raises(TypeError, match=r"got torch.float32 of shape \(4,\)"):
        masked([torch.tensor([1])], torch.zeros(4))


# In a loop


def _on_a_rank(rank: int, world_size: int) -> Any:
    labels = [[torch.tensor([4, 0])], [torch.tensor([2]), torch.tensor([0])], []][rank]
    state = state_with(labels, torch.zeros(1, 7))
    hook = OutputMask()
    state.world_size = world_size
    hook.on_phase_start(state)
    if labels:
        hook.on_forward(state)
    return state.output.tolist()[0]


def test_classes_are_those_of_all_ranks_and_a_rank_may_have_no_data() -> None:
    expected = [0, NO, 0, NO, 0, NO, NO]
    assert on_ranks(_on_a_rank, 3) == [expected, expected, [0] * 7]


def test_a_batch_without_the_labels_is_an_error_that_names_its_keys() -> None:
    state = State(phase="val", fresh_batches=lambda phase: iter([{"x": 1, "y": 2}]))
    with pytest.raises(ValueError, match=r"target: the batch has no entry 1; it has x, y"):
        OutputMask().on_phase_start(state)
