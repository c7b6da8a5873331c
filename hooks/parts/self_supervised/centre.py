"""What keeps a teacher's outputs from collapsing, as in DINO and iBOT: a running centre, and a temperature that warms
up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks.parts.self_supervised.teacher import MomentumTeacher
from hooks.parts.unread_fields import refuse_unread


class Centre:
    """The running mean of outputs over all ranks: centre = m * centre + (1 - m) * mean of a batch. It begins at 0."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.value: Tensor | None = None
        """(1, K) once there was a batch."""

    def like(self, outputs: Tensor) -> Tensor:
        """The centre (1, K) of outputs (..., K), on their device."""
        if self.value is None:
            return torch.zeros(1, outputs.shape[-1], device=outputs.device)
        return self.value.to(outputs.device)

    def follow(self, outputs: Tensor, world_size: int) -> None:
        """Moves towards the mean of the outputs (n, K) of all ranks; a collective where there are several."""
        total = torch.cat([outputs.float().sum(0), outputs.new_full((1,), len(outputs), dtype=torch.float32)])
        if world_size > 1:
            dist.all_reduce(total)
        self.value = self.like(outputs).lerp((total[:-1] / total[-1]).unsqueeze(0), 1 - self.momentum)

    def state_dict(self, name: str) -> dict[str, Tensor]:
        """The centre by a name of the hook's, once there is one: for its `state_dict`."""
        return {} if self.value is None else {name: self.value}


def warmed_up(epoch: int, epochs: int, first: float, last: float) -> float:
    """A temperature that rises linearly from `first` in epoch 0 to `last` in the last of `epochs`, and stays."""
    if epoch >= epochs:
        return last
    return first + (last - first) * epoch / max(1, epochs - 1)


@dataclass
class CentredTeacher(MomentumTeacher):
    """The part of a hook whose teacher sees the global views alone, with a running centre of its outputs. A hook brings
    `on_forward`."""

    global_views: Annotated[int, Ge(1)] = 2
    """How many views, the first ones, are large crops."""
    centre_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """How much of the centre of whole views stays at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """The teacher's temperature for whole views after the warm-up."""
    warmup_temperature: Annotated[float, Gt(0)] = 0.04
    """Its temperature in the first epoch of the warm-up."""
    warmup_epochs: Annotated[int, Ge(0)] = 0
    """Epochs of the warm-up; in the last of them, where there are several, temperatures are the final ones."""

    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs == 0:
            refuse_unread(self, "warmup_epochs", "warmup_temperature")
        self._centre = Centre(self.centre_momentum)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._centre.state_dict("centre")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._centre.value = state.get("centre")
