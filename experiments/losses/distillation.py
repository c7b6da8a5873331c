"""The loss of distillation: the labels, and what a teacher says of each sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from hooks.self_supervised.distillation import DistillationOutput


@dataclass(frozen=True)
class DistillationLoss:
    """(1 - weight) * cross entropy + weight * T^2 * KL(teacher at T || student at T), the mean over
    the batch.

    Outputs are logits (B, C). T^2 keeps the size of the gradients where T changes.
    Source: "Distilling the Knowledge in a Neural Network" (Hinton et al., 2015), section 2.
    """

    temperature: float = 4.0
    weight: float = 0.9

    def required_hooks(self) -> Mapping[str, Any]:
        """Return the hook that runs the teacher, which the experiment chooses."""
        return {"distillation": {}}

    def __call__(self, output: DistillationOutput, labels: Tensor) -> Tensor:
        student = output.student.float()
        teacher = output.teacher.float()
        divergence = functional.kl_div(
            functional.log_softmax(student / self.temperature, dim=1),
            functional.log_softmax(teacher / self.temperature, dim=1),
            reduction="batchmean",
            log_target=True,
        )
        from_teacher = self.temperature**2 * divergence
        if self.weight == 1:
            # Without labels: the cross entropy of ignored ones is NaN.
            return from_teacher
        own = functional.cross_entropy(student, labels)
        return (1 - self.weight) * own + self.weight * from_teacher
