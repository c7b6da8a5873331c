"""Measures what BatchNorm layers normalize by anew before each validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from hooks.hook import NEEDS_MODEL, Hook, Setup
from hooks.parts import batch_norm_statistics as batch_statistics
from hooks.private_torch import tree_map_only
from hooks.state import State


@dataclass
class PreciseBatchNorm(Hook):
    """Sets BatchNorm's running statistics, when a training phase ends, to those of many samples under one set of
    weights.

    Running averages mix in the weights of steps before. Takes `num_samples` training samples over all ranks, in whole
    batches, shuffled and the same each time, outside the training order; every value weighs the same, whatever its
    batch or rank. Training itself is not changed, as it normalizes by its batches. Costs a forward pass of these
    samples for each validation. Frozen layers (in evaluation mode while the model trains) are left alone. Collective:
    one sum over ranks. Raises ValueError at start for SyncBatchNorm. Source: ClassyVision PreciseBatchNormHook, whose
    ranks each keep the statistics of their own share; "Rethinking 'Batch' in BatchNorm" (Wu and Johnson, 2021).
    """

    num_samples: Annotated[int, Ge(1)]
    """How many training samples, over all ranks; at most each once."""
    cache_samples: bool = False
    """Keeps these samples in the memory of the host, instead of loading them again for each validation."""

    collective: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._cache: list[Any] | None = None

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it runs the model over each rank's own batches", custom_loop=NEEDS_MODEL)

    def on_start(self, state: State) -> None:
        batch_statistics.refuse_sync(state.module, self.name or "precise_batch_norm")

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            batch_statistics.recompute(state, self._batches(state))

    def _batches(self, state: State) -> Iterator[Any]:
        if not self.cache_samples:
            return self._load(state)
        if self._cache is None:
            self._cache = [_moved(batch, torch.device("cpu")) for batch in self._load(state)]
        return (_moved(batch, state.device) for batch in self._cache)

    def _load(self, state: State) -> Iterator[Any]:
        wanted = self.num_samples // state.world_size + (state.rank < self.num_samples % state.world_size)
        batches = iter(state.fresh_batches("train", shuffled=True))
        while wanted > 0 and (batch := next(batches, None)) is not None:
            yield batch
            wanted -= state.samples_in(batch)


def _moved(batch: Any, device: torch.device) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
