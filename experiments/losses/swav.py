"""SwAV's loss: each view predicts the codes of another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.prototypes import SwappedViews


def swapped_prediction(views: SwappedViews, temperature: float = 0.1) -> Tensor:
    """The mean over assigned views s and all other views t of the cross entropy between the codes of s and the scores of t.

    For a pair it is -sum_k q_s(k) log p_t(k), the mean over the batch, with p_t the softmax of the scores / temperature.
    Source: "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), equation 2.
    """
    losses = [
        functional.cross_entropy(scores / temperature, codes)
        for assigned, codes in views.codes.items()
        for view, scores in enumerate(views.scores)
        if view != assigned
    ]
    return torch.stack(losses).mean()
