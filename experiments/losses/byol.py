"""BYOL's loss: each view's prediction meets the target of the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.byol import BYOLOutput


@dataclass(frozen=True)
class BYOLLoss:
    """The sum over ordered pairs of views of 2 - 2 cos(prediction, target), the mean over the
    batch.

    Source: "Bootstrap Your Own Latent" (Grill et al., 2020), equation 2, made symmetric.
    """

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the targets."""
        return {"byol": {}}

    def __call__(self, output: BYOLOutput) -> Tensor:
        pairs = permutations(range(len(output.targets)), 2)
        cosines = [
            functional.cosine_similarity(output.predictions[i], output.targets[j]) for i, j in pairs
        ]
        return (2 - 2 * torch.stack(cosines)).sum(dim=0).mean()
