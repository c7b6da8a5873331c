from typing import Any

import torch

from experiments.mnist_clustering import MnistSwAV


def test_scores_are_the_similarities_of_unit_length_embeddings_to_the_prototypes() -> None:
    torch.manual_seed(0)
    task = MnistSwAV(width=2, embedding=5, prototypes=7)
    model: Any = task.model()
    views = [view(torch.rand(6, 1, 28, 28)) for view in task.views()]
    assert [tuple(view.shape) for view in views] == [(6, 1, 28, 28)] * 2 + [(6, 1, 16, 16)] * 2
    embeddings, scores = task.forward(model, (views, torch.arange(6)))
    for embedding, score in zip(embeddings, scores, strict=True):
        torch.testing.assert_close(embedding.norm(dim=1), torch.ones(6))
        torch.testing.assert_close(score, embedding @ model.prototypes.weight.t())
