"""iBOT's loss: views meet the teacher's other views, and masked patches the teacher's same
patches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.ibot import IBOTOutput


@dataclass(frozen=True)
class IBOTLoss:
    """The weighted sum of two means of -sum_k p_teacher(k) log p_student(k).

    One is over pairs of a global view and another view, as in DINO; the other over the masked
    patches of each sample, then over the samples and global views. p_teacher is the softmax of
    (output - center) / teacher temperature, p_student of output / temperature. A sample without a
    masked patch adds nothing to the second.
    Source: "iBOT: Image BERT Pre-Training with Online Tokenizer" (Zhou et al., 2022), equations 2
    and 3 and algorithm 1.
    """

    temperature: float = 0.1
    view_weight: float = 1.0
    patch_weight: float = 1.0

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that makes the teacher's outputs and their centers."""
        return {"ibot": {}}

    def __call__(self, output: IBOTOutput, masks: Sequence[Tensor]) -> Tensor:
        """Return the loss.

        Args:
            output: What the hook makes of the views.
            masks: (B, N) for each global view, true where a patch was hidden from the student.
        """
        targets = [
            ((whole - output.center) / output.temperature).softmax(-1)
            for whole, _ in output.teacher
        ]
        views = [
            functional.cross_entropy(whole.float() / self.temperature, target)
            for i, target in enumerate(targets)
            for j, (whole, _) in enumerate(output.student)
            if i != j
        ]
        patches = []
        pairs = zip(output.student, output.teacher, masks, strict=False)
        for (_, student), (_, teacher), mask in pairs:
            target = ((teacher - output.patch_center) / output.patch_temperature).softmax(-1)
            patches.append(self._compute_patch_loss(student, target, mask))
        view_loss = self.view_weight * torch.stack(views).mean()
        return view_loss + self.patch_weight * torch.stack(patches).mean()

    def _compute_patch_loss(self, student: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Return the mean over the masked patches of each sample, then over the samples."""
        predicted = (student.float() / self.temperature).log_softmax(-1)
        losses = -(target * predicted).sum(-1)
        return ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
