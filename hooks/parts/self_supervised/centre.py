"""What keeps a teacher's outputs from collapsing, as in DINO and iBOT: a running centre, and a temperature that warms up."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Centre:
    """The running mean of outputs over all ranks: centre = m * centre + (1 - m) * mean of a batch. It begins at 0."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.value: Tensor | None = None
        """(1, K) once there was a batch: for the hook's `state_dict`."""

    def like(self, outputs: Tensor) -> Tensor:
        """The centre (1, K) of outputs (..., K), on their device."""
        if self.value is None:
            return torch.zeros(1, outputs.shape[-1], device=outputs.device)
        return self.value.to(outputs.device)

    def follow(self, outputs: Tensor, world_size: int) -> None:
        """Moves towards the mean of the outputs (n, K) of all ranks; a collective where there are several."""
        total = torch.cat([outputs.float().sum(0), outputs.new_tensor([len(outputs)], dtype=torch.float32)])
        if world_size > 1:
            dist.all_reduce(total)
        self.value = self.like(outputs).lerp((total[:-1] / total[-1]).unsqueeze(0), 1 - self.momentum)


def warmed_up(epoch: int, epochs: int, first: float, last: float) -> float:
    """A temperature that rises linearly from `first` in epoch 0 to `last` in the last of `epochs`, and stays."""
    if epoch >= epochs:
        return last
    return first + (last - first) * epoch / max(1, epochs - 1)
