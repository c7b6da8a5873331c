from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hooks.self_supervised.moco import MoCo
from tests.hooks.self_supervised.views import Miniature, Network, follow, pairs, plain, share
from tests.ranks import on_ranks


class Original:
    """MoCo as its authors publish it (moco/builder.py), in one process: the update comes before
    each forward pass."""

    def __init__(self, momentum: float, length: int) -> None:
        torch.manual_seed(0)
        self.query = Network(batch_norm=False)
        torch.manual_seed(0)
        self.key = Network(batch_norm=False).requires_grad_(False)
        self.momentum = momentum
        self.length = length
        self.pointer = 0
        directions = torch.randn(length, 3, generator=torch.Generator().manual_seed(0))
        self.queue = functional.normalize(directions, dim=1).t().contiguous()
        self.keys: list[Tensor] = []
        self.losses: list[float] = []

    def train(self, batches: list[Any]) -> None:
        optimizer = torch.optim.SGD(self.query.parameters(), lr=0.1)
        for (first, second), _ in batches:
            q = functional.normalize(self.query([first])[0], dim=1)
            with torch.no_grad():
                follow(self.key, self.query, self.momentum)
                k = functional.normalize(self.key.encoder(second), dim=1)
            l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([l_pos, l_neg], dim=1) / 0.2
            loss = nn.CrossEntropyLoss()(logits, torch.zeros(logits.shape[0], dtype=torch.long))
            self.queue[:, self.pointer : self.pointer + len(k)] = k.T
            self.pointer = (self.pointer + len(k)) % self.length
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.keys.append(k)
            self.losses.append(loss.item())


def test_keys_queue_and_losses_are_those_of_the_original() -> None:
    batches = pairs(5)
    original = Original(momentum=0.9, length=16)
    mine = Miniature(MoCo(momentum=0.9, queue_length=16), "moco")
    original.train(batches)
    mine.train(batches)
    assert mine.losses == pytest.approx(original.losses, abs=1e-6)
    for output, keys in zip(mine.outputs, original.keys, strict=True):
        torch.testing.assert_close(output.key, keys)
    torch.testing.assert_close(mine.hook.state_dict()["queue"].t(), original.queue)
    assert mine.hook.state_dict()["next"] == original.pointer == 8


def test_a_queue_that_is_no_multiple_of_the_batch_keeps_the_newest_keys() -> None:
    mine = Miniature(MoCo(queue_length=5), "moco")
    mine.train([*pairs(2, size=3), *pairs(1, size=2, seed=5)])
    keys = torch.cat([output.key for output in mine.outputs])
    assert sorted(plain(mine.hook.state_dict()["queue"])) == sorted(plain(keys[-5:]))


# Ranks


def shuffled(rank: int, world_size: int) -> list[Any]:
    mine = Miniature(
        MoCo(queue_length=16), "moco", batch_norm=True, rank=rank, world_size=world_size
    )
    mine.state.iteration = 7
    mine.train([share(pairs(1)[0], [4, 4], rank)])
    queue = plain(mine.hook.state_dict()["queue"][:8])
    mine.phase("val")
    for _ in range(1 - rank):
        mine.forward(share(pairs(1)[0], [4, 4], rank))
    assert plain(mine.hook.state_dict()["queue"][:8]) == queue
    return [plain(mine.outputs[0].key), queue]


def test_batch_norm_sees_shuffled_images_and_keys_come_back_in_order() -> None:
    """In val rank 0 has a batch more than rank 1, for which it must not wait."""
    (first, queue), (second, _) = on_ranks(shuffled)
    torch.manual_seed(0)
    encoder = Network(batch_norm=True).encoder
    view = pairs(1)[0][0][1]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(7))
    expected = torch.empty(8, 3)
    with torch.no_grad():
        for group in order.split(4):
            expected[group] = functional.normalize(encoder(view[group]), dim=1)
        unshuffled = torch.cat(
            [functional.normalize(encoder(part), dim=1) for part in view.split(4)]
        )
    torch.testing.assert_close(torch.tensor(first + second), expected)
    torch.testing.assert_close(torch.tensor(queue), expected)
    assert not torch.allclose(expected, unshuffled)


def test_a_queue_of_another_length_is_refused() -> None:
    mine = Miniature(MoCo(queue_length=20), "moco")
    mine.train(pairs(1))
    with pytest.raises(
        ValueError, match="queue_length: the checkpoint's queue has the length 20, not 30"
    ):
        MoCo(queue_length=30).load_state_dict(mine.hook.state_dict())
