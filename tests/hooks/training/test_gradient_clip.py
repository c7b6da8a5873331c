import math
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

from hooks import State
from hooks.training.gradient_clip import GradientClip
from tests.hooks.training.steps import batches, new_state, small_model, train


def with_gradients(scale: float = 1.0) -> nn.Module:
    module = small_model()
    (module(batches(1)[0][0]).square().mean() * scale).backward()
    return module


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    "fields", [*product((0.01, 1000.0), (1.0, 2.0, 3.0, math.inf)), (0.01,)], ids=str
)
def test_clips_as_torch_does_and_records_the_norm_before(fields: tuple[float, ...]) -> None:
    """By a norm and its order, or by a value."""
    names: tuple[str, ...] = ("max_value",)
    clip: Any = clip_grad_value_
    if len(fields) == 2:
        names = ("max_norm", "norm_type")
        clip = clip_grad_norm_
    module = with_gradients()
    reference = with_gradients()
    state = State(module=module)
    norm = get_total_norm(gradients(reference), *fields[1:])
    GradientClip(**dict(zip(names, fields, strict=True))).on_gradients(state)
    clip(reference.parameters(), *fields)
    assert all(
        torch.equal(*pair) for pair in zip(gradients(module), gradients(reference), strict=True)
    )
    # Read later: no synchronization on the step path.
    assert isinstance(state.row["grad_norm"], torch.Tensor)
    assert state.row["grad_norm"].item() == norm.item()


def test_clipping_by_value_does_not_read_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = with_gradients()

    def refuse(tensor: torch.Tensor) -> None:
        raise AssertionError("the norm was read")

    monkeypatch.setattr(torch.Tensor, "item", refuse)
    GradientClip(max_value=0.125).on_gradients(State(module=module))
    monkeypatch.undo()
    assert max(gradient.abs().max().item() for gradient in gradients(module)) <= 0.125


@pytest.mark.parametrize("fields", [{}, {"norm_type": math.inf}, {"max_value": 0.125}], ids=str)
def test_norm_without_gradients_is_zero(fields: dict[str, float]) -> None:
    state = State(module=small_model())
    GradientClip(**fields).on_gradients(state)
    assert (
        state.row["grad_norm"].item() == clip_grad_norm_(state.module.parameters(), 1.0).item() == 0
    )


def test_clips_the_optimizer_s_accumulated_gradients_once_per_step() -> None:
    """iMIX clips each micro-batch's part. Nothing clears the gradients of the layers that the
    optimizer leaves out."""
    module = small_model()
    data = batches(6)
    reference = deepcopy(module)
    optimizer, other = (
        torch.optim.SGD(copy[3].parameters(), lr=0.1, momentum=0.9) for copy in (reference, module)
    )
    rows = train(
        new_state(module, accumulate=2, optimizer=other),
        {"clip": GradientClip(max_norm=0.05)},
        data,
    )
    norms = []
    for first, second in zip(data[::2], data[1::2], strict=True):
        for (batch,) in (first, second):
            (reference(batch).square().mean() / 2).backward()
        norms.append(clip_grad_norm_(reference[3].parameters(), 0.05).item())
        optimizer.step()
        optimizer.zero_grad()
    assert [row["grad_norm"].item() for row in rows if "grad_norm" in row] == norms
    assert len(norms) == 3
    assert all(
        torch.equal(*pair) for pair in zip(module.parameters(), reference.parameters(), strict=True)
    )


class Deep(nn.Module):
    """Layers of very different gradients, whose norms do not sum to the same bits in another
    order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(20))
        self.head = nn.Linear(8, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(batch)
        for block in self.blocks:
            hidden = hidden + block(hidden).tanh()
        return self.head(hidden)  # type: ignore[no-any-return]


def without_decay(module: nn.Module) -> list[dict[str, object]]:
    """Return the usual two groups, biases last, with the layers in reverse."""
    parameters = [*module.parameters()][::-1]
    decayed = [parameter for parameter in parameters if parameter.ndim > 1]
    return [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [parameter for parameter in parameters if parameter.ndim == 1]},
    ]


def test_sums_in_the_order_of_the_model_whatever_the_groups() -> None:
    """Also when a frozen layer has no gradient, and when the optimizer gets another group during
    training."""
    norms = []
    expected = []
    for frozen, order in product((False, True), (1.0, 2.0, 3.0)):
        module = Deep()
        reference = Deep()
        for copy in (module, reference):
            copy.blocks[3].requires_grad_(not frozen)
            copy(batches(1)[0][0]).square().mean().backward()
        first, second = without_decay(module)
        state = State(module=module, optimizer=torch.optim.SGD([first], lr=0.1))
        state.gradient_norm(order)
        assert state.optimizer is not None
        state.optimizer.add_param_group(second)
        state.forget_gradients()
        GradientClip(max_norm=0.01, norm_type=order).on_gradients(state)
        norms.append(state.row["grad_norm"].item())
        expected.append(clip_grad_norm_(reference.parameters(), 0.01, order).item())
        assert all(
            torch.equal(*pair) for pair in zip(gradients(module), gradients(reference), strict=True)
        )
    assert norms == expected


SPARSE = r"the gradient of 0\.weight is sparse.*sparse=False"


def with_embedding(sparse: bool) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2))
    module(torch.tensor([1, 1, 2])).sum().backward()
    return module


def clip(module: nn.Module, hook: GradientClip) -> None:
    hook.on_gradients(State(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1)))


def test_sparse_gradients_are_clipped_as_dense_ones_or_refused_by_name() -> None:
    """Torch has a norm of sparse gradients from 2.14 on."""
    module = with_embedding(sparse=True)
    if torch.__version__ < (2, 14):
        with pytest.raises(TypeError, match=SPARSE):
            clip(module, GradientClip(max_norm=0.1))
        return

    clip(module, GradientClip(max_norm=0.1))
    dense = with_embedding(sparse=False)
    clip(dense, GradientClip(max_norm=0.1))
    for mine, theirs in zip(gradients(module), gradients(dense), strict=True):
        torch.testing.assert_close(mine.to_dense(), theirs)


def test_elements_of_sparse_gradients_are_not_clipped() -> None:
    """Torch has no bound for them."""
    with pytest.raises(TypeError, match=SPARSE):
        clip(with_embedding(sparse=True), GradientClip(max_value=0.1))
