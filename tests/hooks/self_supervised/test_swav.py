from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.losses.swav import SwAVLoss
from hooks import Hook, HookError, Interval, State
from hooks.checkpointing.checkpoint import Checkpoint
from hooks.self_supervised.shared.sinkhorn import assign_codes
from hooks.self_supervised.shared.swapped_prediction import SwappedViews
from hooks.self_supervised.swav import SwAV
from hooks.self_supervised.swav_momentum import SwAVMomentum
from hooks.training.freeze_parameters import FreezeParameters
from orchestrator.experiment.optim.component import Component
from tests.hooks.self_supervised.clouds import Clouds, train

DECAYED = Component(type="SGD", lr=0.1, momentum=0.9, weight_decay=0.1)
STEPS = 6
"""Steps in an epoch of 48 samples in batches of 8."""


def steps(count: int) -> Interval:
    return Interval(count, "steps")


def freeze_until(until: Interval) -> FreezeParameters:
    return FreezeParameters(patterns=["prototypes.weight"], until=until)


# The original, written as a plain loop


class Original(Hook):
    """Looks at each training batch and keeps what SwAV's training script would do with it; comes
    before the hook."""

    priority = 0

    def __init__(self, queue_length: int, queue_begin: int, hard_until: int = 0) -> None:
        self.length = queue_length
        self.begin = queue_begin
        self.hard_until = hard_until
        self.queue = torch.zeros(2, 0, 5)
        self.codes: list[list[Tensor]] = []

    def on_forward(self, state: State) -> None:
        weight = state.module.prototypes.weight.detach()
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
        with torch.no_grad():
            embeddings, _ = state.module(state.batch[0])
        tables = []
        for view in (0, 1):
            samples = embeddings[view]
            if 0 < self.length <= self.queue.shape[1]:
                samples = torch.cat([samples, self.queue[view, -self.length :]])
            codes = assign_codes(samples @ weight.t(), 0.05, 3, across_ranks=False)[:8]
            if state.step < self.hard_until:  # VISSL's temp_hard_assignment_iters
                largest = torch.max(codes, dim=1)[1]
                codes.zero_()
                codes.scatter_(1, largest.unsqueeze(1), 1)
            tables.append(codes)
        self.codes.append(tables)
        if state.step >= self.begin:
            self.queue = torch.cat([self.queue, torch.stack(embeddings[:2])], dim=1)


class Seen(Hook):
    """The codes the loss was given."""

    def __init__(self) -> None:
        self.codes: list[list[Tensor]] = []

    def on_loss(self, state: State) -> None:
        if state.phase == "train":
            self.codes.append(list(state.output.codes.values()))


@pytest.mark.parametrize("length", [0, 16, 20])
def test_codes_are_of_the_batch_and_the_full_queue(length: int) -> None:
    original = Original(length, STEPS)
    seen = Seen()
    queue = {"queue_length": length, "queue_begin": steps(STEPS)} if length else {}
    train(Clouds(), {"original": original, "swav": SwAV(**queue), "seen": seen})
    assert len(seen.codes) == 3 * STEPS
    for mine, theirs in zip(seen.codes, original.codes, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("until", "hard"), [(steps(4), 4), (Interval(2), 2 * STEPS)])
def test_codes_are_hard_at_first(until: Interval, hard: int) -> None:
    original = Original(16, STEPS, hard)
    seen = Seen()
    swav = SwAV(queue_length=16, queue_begin=steps(STEPS), hard_codes_until=until)
    trained = train(Clouds(), {"original": original, "swav": swav, "seen": seen})
    assert len(seen.codes) == len(trained.losses) == 3 * STEPS
    for mine, theirs in zip(seen.codes, original.codes, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("views", [[0, 2], [1], [0, 1, 2]], ids=str)
def test_resume_with_other_assigned_views_begins_a_new_queue(
    tmp_path: Path, views: list[int]
) -> None:
    """Until it is full, codes are those of the batch alone."""
    before = SwAV(queue_length=16, queue_begin=steps(0))
    train(Clouds(), {"swav": before, "checkpoint": Checkpoint()}, root=tmp_path, epochs=1)
    codes = []
    for length in (0, 64):
        seen = Seen()
        swav = SwAV(assigned_views=views, queue_length=length)
        hooks = {"swav": swav, "seen": seen}
        train(Clouds(), hooks, root=tmp_path, restore="epoch-0001", epochs=2)
        codes.append(seen.codes)
    assert len(codes[0]) == STEPS
    torch.testing.assert_close(codes[1], codes[0])


# The prototypes


class Inputs(Hook):
    """Keeps the weights before the first step, and each batch with its codes."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.batches: list[tuple[list[Tensor], dict[int, Tensor]]] = []

    def on_start(self, state: State) -> None:
        self.weights = {name: value.clone() for name, value in state.module.state_dict().items()}

    def on_loss(self, state: State) -> None:
        self.batches.append((state.batch[0], state.output.codes))


def test_prototypes_may_stay_as_the_optimizer_leaves_them() -> None:
    """VISSL's normalize_last_layer: False. The reference is a plain loop over the same codes,
    without a hook."""
    inputs = Inputs()
    hooks = {"swav": SwAV(normalize_prototypes=False), "inputs": inputs}
    trained = train(Clouds(), hooks, optimizer=DECAYED)
    model = Clouds().model()
    model.load_state_dict(inputs.weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    assert not torch.allclose(
        inputs.weights["prototypes.weight"].norm(dim=1), torch.ones(4), atol=0.01
    )
    for views, codes in inputs.batches:
        _, scores = model(views)
        loss = SwAVLoss()(SwappedViews(scores, codes))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(trained.loop.state.module.state_dict(), model.state_dict())


class Weights(Hook):
    """The prototypes as each step left them."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def on_start(self, state: State) -> None:
        self.on_step(state)

    def on_step(self, state: State) -> None:
        self.values.append(state.module.prototypes.weight.detach().clone())


@pytest.mark.parametrize(("freeze", "frozen"), [(steps(4), 4), (Interval(1), STEPS), (steps(0), 0)])
def test_prototypes_are_unit_vectors_and_frozen_at_first(freeze: Interval, frozen: int) -> None:
    weights = Weights()
    train(
        Clouds(),
        {"freeze": freeze_until(freeze), "swav": SwAV(), "weights": weights},
        optimizer=DECAYED,
    )
    for value in weights.values:
        torch.testing.assert_close(value.norm(dim=1), torch.ones(4))
    for step, (before, after) in enumerate(zip(weights.values, weights.values[1:], strict=False)):
        assert torch.allclose(before, after, atol=1e-7, rtol=0) == (step < frozen), step


@pytest.mark.parametrize("make", [SwAV, SwAVMomentum])
def test_assigned_view_that_a_batch_lacks_is_refused(make: type[SwAV | SwAVMomentum]) -> None:
    with pytest.raises(HookError, match=r"assigned_views: a batch has 3 views.* no view 3"):
        train(Clouds(), {"swav": make(assigned_views=[0, 3])}, epochs=1)
