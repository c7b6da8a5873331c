"""DeepCluster's loss: each view predicts the cluster of its sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.deepcluster import UNASSIGNED, ClusteredViews


@dataclass(frozen=True)
class DeepClusterLoss:
    """The mean over heads of the cross entropy between all views' scores and the cluster of their
    sample.

    Scores are the similarities to the centroids / temperature. Samples without a cluster do not
    count; where no sample has one the loss is 0. Source: "Unsupervised Learning of Visual Features
    by Contrasting Cluster Assignments" (Caron et al., 2020), appendix on DeepCluster-v2; "Deep
    Clustering for Unsupervised Learning" (Caron et al., 2018), equation 1.
    """

    temperature: float = 0.1

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the clusters."""
        return {"deepcluster": {}}

    def __call__(self, output: ClusteredViews) -> Tensor:
        embeddings = torch.cat(output.embeddings)
        losses = []
        for centroids, assignments in zip(output.centroids, output.assignments, strict=True):
            targets = assignments.repeat(len(output.embeddings))
            scores = embeddings @ centroids.t() / self.temperature
            total = functional.cross_entropy(
                scores.float(), targets, ignore_index=UNASSIGNED, reduction="sum"
            )
            losses.append(total / (targets != UNASSIGNED).sum().clamp(min=1))
        return torch.stack(losses).mean()
