"""Bootstrap your own latent: targets by a momentum copy of the encoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hooks.hook import Hook
from hooks.parts.self_supervised.teacher import MomentumTeacher
from hooks.state import State


@dataclass(frozen=True)
class BYOLOutput:
    """What BYOL's loss needs, for each view."""

    predictions: list[Tensor]
    """The predictor's outputs, (B, D), with gradients."""
    targets: list[Tensor]
    """The target network's embeddings, (B, D)."""


@dataclass
class BYOL(MomentumTeacher, Hook):
    """Gives the loss BYOL's targets: the embeddings of each view by a momentum copy of encoder and projector.

    The task's forward pass gives a list with the predictor's output (B, D) for each view; the hook replaces it by
    `BYOLOutput`. The part that is copied, `encoder`, is without the predictor. The target network follows after each
    optimizer step, with a momentum that rises to 1 by a cosine over the run and is recorded as `teacher_momentum`.
    Every rank does the same on its own batch; no communication. In val and test the target network uses its running
    statistics and stays as it is. Raises ValueError where the model has no such encoder or the output does not have one
    tensor per view. Source: "Bootstrap Your Own Latent" (Grill et al., 2020).
    """

    def on_forward(self, state: State) -> None:
        views, predictions = state.batch[0], list(state.output)
        if len(predictions) != len(views):
            raise ValueError(
                f"the forward pass gave {len(predictions)} outputs for {len(views)} views; BYOL needs a prediction for"
                " each"
            )
        state.output = BYOLOutput(predictions, [self._teacher(view) for view in views])
