import torch
from torch.nn import functional

from experiments.losses.deepcluster import DeepClusterLoss
from hooks.self_supervised.deepcluster import UNASSIGNED, ClusteredViews


def test_the_loss_is_the_cross_entropy_of_every_view_with_its_samples_cluster() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = [functional.normalize(torch.randn(3, 4, generator=generator), dim=1) for _ in range(3)]
    centroids = [functional.normalize(torch.randn(k, 4, generator=generator), dim=1) for k in (2, 5)]
    assignments = torch.tensor([[0, 1, UNASSIGNED], [4, UNASSIGNED, 2]])
    heads = []
    for table, places in zip(centroids, assignments.tolist(), strict=True):
        terms = []
        for view in embeddings:
            for sample, place in zip(view, places, strict=True):
                if place != UNASSIGNED:
                    exponentials = [torch.exp(sample @ direction / 0.1) for direction in table]
                    terms.append(-torch.log(exponentials[place] / sum(exponentials)))
        heads.append(torch.stack(terms).mean())
    found = DeepClusterLoss(0.1)(ClusteredViews(embeddings, centroids, assignments))
    torch.testing.assert_close(found, torch.stack(heads).mean())


def test_a_batch_without_assignments_has_no_loss() -> None:
    embeddings = [torch.randn(3, 4, requires_grad=True)]
    loss = DeepClusterLoss()(ClusteredViews(embeddings, [torch.randn(2, 4)], torch.full((1, 3), UNASSIGNED)))
    loss.backward()
    assert loss == 0
    assert embeddings[0].grad is not None
    assert not embeddings[0].grad.any()
