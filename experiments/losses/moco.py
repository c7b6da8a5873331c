"""MoCo's loss: a query finds its key among earlier ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.moco import MoCoOutput


@dataclass(frozen=True)
class MoCoLoss:
    """InfoNCE: -log(exp(q.k / t) / (exp(q.k / t) + sum over the queue of exp(q.n / t))), the mean
    over the batch.

    Source: "Momentum Contrast for Unsupervised Visual Representation Learning" (He et al., 2020),
    equation 1.
    """

    temperature: float = 0.07

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the keys and the queue."""
        return {"moco": {}}

    def __call__(self, output: MoCoOutput) -> Tensor:
        positive = (output.query * output.key).sum(dim=1, keepdim=True)
        similarities = torch.cat([positive, output.query @ output.queue.t()], dim=1)
        first = torch.zeros(len(similarities), dtype=torch.int64, device=similarities.device)
        return functional.cross_entropy(similarities.float() / self.temperature, first)
