"""BYOL: targets by a momentum copy of the encoder."""

from dataclasses import dataclass

from torch import Tensor

from hooks.self_supervised.shared.momentum_teacher import MomentumTeacher, check_outputs
from hooks.state import State


@dataclass(frozen=True)
class BYOLOutput:
    """Input of BYOL's loss, for each view."""

    predictions: list[Tensor]
    """Outputs of the predictor, (B, D), with gradients."""
    targets: list[Tensor]
    """Embeddings of the target network, (B, D)."""


@dataclass
class BYOL(MomentumTeacher):
    """Give BYOL's loss its targets: embeddings of each view by a momentum copy of encoder and
    projector.

        byol: {encoder: encoder, momentum: 0.996}

    The task's forward pass returns a list with the predictor's output (B, D) for each view; the
    hook replaces it by `BYOLOutput`. `encoder` names the part to copy, without the predictor. The
    copy follows after each optimizer step, and its momentum rises to 1 by a cosine.

    Columns:
        * `teacher_momentum`: The copy's momentum.

    Source: "Bootstrap Your Own Latent" (Grill et al., 2020).
    """

    def on_forward(self, state: State) -> None:
        views = state.batch[0]
        predictions = list(state.output)
        check_outputs(predictions, views, "BYOL")
        state.output = BYOLOutput(predictions, [self._teacher(view) for view in views])
