"""Centering and temperature of a teacher's outputs, which keep them from collapsing, as in DINO and iBOT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.distributed as dist
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks.needs import Needs
from hooks.parts.self_supervised.teacher import MomentumTeacher


class Centre:
    """Running mean of outputs over all ranks: centre = m * centre + (1 - m) * mean of a batch. Begins at 0."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.value: Tensor | None = None
        """(1, K) after the first batch."""

    def like(self, outputs: Tensor) -> Tensor:
        """Return the centre (1, K) of outputs (..., K), on their device."""
        if self.value is None:
            return torch.zeros(1, outputs.shape[-1], device=outputs.device)
        return self.value.to(outputs.device)

    def follow(self, outputs: Tensor, world_size: int) -> None:
        """Move towards the mean of the outputs (n, K) of all ranks; collective."""
        total = torch.cat([outputs.float().sum(0), outputs.new_full((1,), len(outputs), dtype=torch.float32)])
        if world_size > 1:
            dist.all_reduce(total)
        self.value = self.like(outputs).lerp((total[:-1] / total[-1]).unsqueeze(0), 1 - self.momentum)

    def state_dict(self, name: str) -> dict[str, Tensor]:
        """Return the centre under a name, if there is one."""
        return {} if self.value is None else {name: self.value}


def warm_up(epoch: int, epochs: int, first: float, last: float) -> float:
    """Return a temperature that rises linearly from `first` in epoch 0 to `last` in the last of `epochs`."""
    if epoch >= epochs:
        return last
    return first + (last - first) * epoch / max(1, epochs - 1)


@dataclass
class CentredTeacher(MomentumTeacher):
    """The base of hooks whose teacher sees the global views, with a running centre of its outputs."""

    global_views: Annotated[int, Ge(1)] = 2
    """Number of views that are large crops; they come first."""
    centre_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """Share of the centre that stays at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """Teacher's temperature after the warm-up."""
    warmup_temperature: Annotated[float, Gt(0), Needs("warmup_epochs")] = 0.04
    """Teacher's temperature in the first epoch of the warm-up."""
    warmup_epochs: Annotated[int, Ge(0)] = 0
    """Epochs of the warm-up; the last of several has the final temperatures."""

    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._centre = Centre(self.centre_momentum)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._centre.state_dict("centre")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._centre.value = state.get("centre")
