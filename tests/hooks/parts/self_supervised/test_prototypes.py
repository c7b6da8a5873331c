from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hooks.parts.self_supervised.prototypes import Queue, find_layer


def embeddings(samples: int, seed: int) -> Tensor:
    """Of two assigned views, (2, samples, 3)."""
    return torch.randn(2, samples, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (3, 5, 1, 4, 4), (20, 1)])
def test_the_queue_holds_the_newest_embeddings_of_each_view(sizes: tuple[int, ...]) -> None:
    queue, prototypes, own = Queue(), nn.Linear(3, 2, bias=False), torch.zeros(2, 1, 2)
    everything = torch.zeros(2, 0, 3)
    for seed, size in enumerate(sizes):
        queue.push(embeddings(size, seed), 8)
        everything = torch.cat([everything, embeddings(size, seed)], dim=1)
        joined = queue.join(own, prototypes)
        if everything.shape[1] < 8:
            assert joined is own
            continue
        assert torch.equal(joined[:, :1], own)
        expected = everything[:, -8:] @ prototypes.weight.t()
        for view in range(2):
            found = sorted(joined[view, 1:].tolist())
            torch.testing.assert_close(torch.tensor(found), torch.tensor(sorted(expected[view].tolist())))


@pytest.mark.parametrize(
    ("name", "what"), [("missing", "is missing"), ("biased", "is a Linear with bias"), ("other", "is a ReLU")]
)
def test_prototypes_must_be_a_linear_layer_without_bias(name: str, what: str) -> None:
    module = nn.ModuleDict({"biased": nn.Linear(2, 2), "other": nn.ReLU()})
    with pytest.raises(ValueError, match=f"'{name}' of ModuleDict {what}"):
        find_layer(module, name)
