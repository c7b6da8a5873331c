"""DINO's loss: the student's distribution for each view meets the teacher's for another."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.dino import DINOOutput


@dataclass(frozen=True)
class DINOLoss:
    """The mean over pairs of a global view and another of -sum_k p_teacher(k) log p_student(k), the
    mean over the batch.

    p_teacher is the softmax of (output - center) / teacher temperature, p_student of output /
    temperature.
    Source: "Emerging Properties in Self-Supervised Vision Transformers" (Caron et al., 2021),
    equation 3 and algorithm 1.
    """

    temperature: float = 0.1

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the teacher's outputs and their center."""
        return {"dino": {}}

    def __call__(self, output: DINOOutput) -> Tensor:
        targets = [
            ((view - output.center) / output.teacher_temperature).softmax(dim=1)
            for view in output.teacher
        ]
        predictions = [view.float() / self.temperature for view in output.student]
        losses = [
            functional.cross_entropy(prediction, target)
            for i, target in enumerate(targets)
            for j, prediction in enumerate(predictions)
            if i != j
        ]
        return torch.stack(losses).mean()
