from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks import Hook, Interval, State
from hooks.self_supervised.shared.sinkhorn import assign_codes
from hooks.self_supervised.swav_momentum import SwAVMomentum
from tests.hooks.self_supervised.clouds import Clouds, train


def steps(count: int) -> Interval:
    return Interval(count, "steps")


class Original(Hook):
    """What VISSL does: after each forward pass of the model but the first the copy moves, takes the
    model's buffers and gives codes; both nets are normalized after a step. It keeps what the codes
    must be."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.queue = torch.zeros(2, 0, 5)
        self.copy: nn.Module | None = None
        self.expected: list[Tensor] = []
        self.found: list[Tensor] = []

    def on_loss(self, state: State) -> None:
        if state.phase == "train":
            self.found.append(torch.stack(list(state.output.codes.values())))
            self.expected.append(self._codes(state))

    @torch.no_grad()
    def _codes(self, state: State) -> Tensor:
        if self.copy is None:
            self.copy = deepcopy(state.module).eval()
        else:
            for mine, theirs in zip(self.copy.parameters(), state.module.parameters(), strict=True):
                mine.copy_(mine * 0.8 + theirs * 0.2)
            self._normalize(self.copy)
        for mine, theirs in zip(self.copy.buffers(), state.module.buffers(), strict=True):
            mine.copy_(theirs)
        embeddings, scores = self.copy(state.batch[0][:2])
        joined = torch.stack(scores)
        if self.queue.shape[1] >= self.length > 0:
            weight = self.copy.prototypes.weight
            joined = torch.cat([joined, self.queue[:, -self.length :] @ weight.t()], dim=1)
        self.queue = torch.cat([self.queue, torch.stack(embeddings)], dim=1)
        return torch.stack(
            [assign_codes(table, 0.05, 3, across_ranks=False)[:8] for table in joined]
        )

    def _normalize(self, module: Any) -> None:
        module.prototypes.weight.copy_(functional.normalize(module.prototypes.weight, dim=1))


@pytest.mark.parametrize("length", [0, 16])
def test_codes_are_those_of_the_momentum_encoder(length: int) -> None:
    original = Original(length)
    hook = (
        SwAVMomentum(momentum=0.8, queue_length=length, queue_begin=steps(0))
        if length
        else SwAVMomentum(momentum=0.8)
    )
    train(Clouds(batch_norm=True), {"swav": hook, "original": original})
    assert len(original.found) == 18
    for found, expected in zip(original.found, original.expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_both_nets_have_unit_prototypes_and_the_same_buffers() -> None:
    hook = SwAVMomentum(momentum=0.5)
    trained = train(Clouds(batch_norm=True), {"swav": hook})
    encoder = hook.state_dict()["teacher"]
    own = trained.loop.state.module.state_dict()
    for weights in (encoder, own):
        torch.testing.assert_close(weights["prototypes.weight"].norm(dim=1), torch.ones(4))
    assert not torch.equal(encoder["prototypes.weight"], own["prototypes.weight"])
    for name, _ in trained.loop.state.module.named_buffers():
        assert torch.equal(encoder[name], own[name])
