"""SwAV's loss: each view predicts the codes of another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.shared.swapped_prediction import SwappedViews


@dataclass(frozen=True)
class SwAVLoss:
    """The mean over pairs of an assigned view s and another t of -sum_k q_s(k) log p_t(k), the mean
    over the batch.

    q_s are the codes of s, p_t is the softmax of the scores of t / temperature.
    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et
    al., 2020), equation 2.
    """

    temperature: float = 0.1
    momentum_encoder: bool = False
    """True for the codes of a momentum encoder."""

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the codes."""
        return {"swav_momentum": {}} if self.momentum_encoder else {"swav": {}}

    def __call__(self, output: SwappedViews) -> Tensor:
        losses = [
            functional.cross_entropy(scores.float() / self.temperature, codes)
            for assigned, codes in output.codes.items()
            for view, scores in enumerate(output.scores)
            if view != assigned
        ]
        return torch.stack(losses).mean()
