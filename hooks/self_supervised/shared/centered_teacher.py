"""The base of hooks whose teacher's outputs are centered and sharpened, which prevents collapse in
DINO and iBOT."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.distributed as dist
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks.needs import Needs
from hooks.self_supervised.shared.momentum_teacher import MomentumTeacher


@dataclass
class CenteredTeacher(MomentumTeacher):
    """Base of hooks whose teacher sees the global views, with a running center of its outputs."""

    global_views: Annotated[int, Ge(1)] = 2
    """Number of global views (large crops), which come first."""
    center_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """Momentum of the center: the weight of its old value at each batch."""
    temperature: Annotated[float, Gt(0)] = 0.07
    """Teacher's temperature after the warm-up."""
    warmup_temperature: Annotated[float, Gt(0), Needs("warmup_epochs")] = 0.04
    """Teacher's temperature in the first epoch of the warm-up."""
    warmup_epochs: Annotated[int, Ge(0)] = 0
    """Number of warm-up epochs; the last of several has the final temperatures."""

    collective: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_center",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._center: Tensor | None = None


def place_center(center: Tensor | None, outputs: Tensor) -> Tensor:
    """Return a center (1, K) on the device of outputs (..., K); zeros before the first batch."""
    if center is None:
        return torch.zeros(1, outputs.shape[-1], device=outputs.device)
    return center.to(outputs.device)


def update_center(center: Tensor, outputs: Tensor, momentum: float, world_size: int) -> Tensor:
    """Return m * center + (1 - m) * mean of the outputs (n, K) of all ranks; collective."""
    count = outputs.new_full((1,), len(outputs), dtype=torch.float32)
    total = torch.cat([outputs.float().sum(0), count])
    if world_size > 1:
        dist.all_reduce(total)
    mean = total[:-1] / total[-1]
    return center.lerp(mean.unsqueeze(0), 1 - momentum)


def warm_up(epoch: int, epochs: int, first: float, last: float) -> float:
    """Return a temperature that rises linearly from `first` in epoch 0 to `last` in the last of
    `epochs`."""
    if epoch >= epochs:
        return last
    return first + (last - first) * epoch / max(1, epochs - 1)
