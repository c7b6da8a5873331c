import torch

from experiments.losses.swav import SwAVLoss
from hooks.parts.self_supervised.prototypes import SwappedViews


def test_the_loss_is_that_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(5, 3, generator=generator) for _ in range(4)]
    tables = {view: torch.randn(5, 3, generator=generator).softmax(dim=1) for view in (0, 1)}
    terms = []
    for source, q in tables.items():
        for target in range(4):
            if target == source:
                continue
            for sample in range(5):
                exponentials = [torch.exp(scores[target][sample, k] / 0.1) for k in range(3)]
                terms.append(-sum(q[sample, k] * torch.log(exponentials[k] / sum(exponentials)) for k in range(3)))
    torch.testing.assert_close(SwAVLoss(0.1)(SwappedViews(scores, tables)), torch.stack(terms).mean())
