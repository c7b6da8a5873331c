"""DeepCluster's loss: each view predicts the cluster its sample was assigned to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.deepcluster import UNASSIGNED, ClusteredViews


def cluster_prediction(views: ClusteredViews, temperature: float = 0.1) -> Tensor:
    """The mean over heads of the cross entropy between all views' scores and the cluster of their sample.

    Scores are the similarities to the centroids / temperature. Samples without a cluster do not count; where no sample
    has one the loss is 0. Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron
    et al., 2020), section 3 and appendix; "Deep Clustering for Unsupervised Learning" (Caron et al., 2018), equation 1.
    """
    embeddings = torch.cat(views.embeddings)
    losses = []
    for centroids, assignments in zip(views.centroids, views.assignments, strict=True):
        targets = assignments.repeat(len(views.embeddings))
        scores = embeddings @ centroids.t() / temperature
        total = functional.cross_entropy(scores, targets, ignore_index=UNASSIGNED, reduction="sum")
        losses.append(total / (targets != UNASSIGNED).sum().clamp(min=1))
    return torch.stack(losses).mean()
