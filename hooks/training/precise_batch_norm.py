"""Precise BatchNorm statistics for validation."""

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
    """BatchNorm statistics recomputed at the end of each training phase, over many samples with the same weights.

        precise_batch_norm: {num_samples: 10000}

    Running averages mix in the weights of earlier steps. The hook takes shuffled training samples outside the training
    order; each value has the same weight, whatever its batch or rank. Training does not change. Costs a forward pass of
    these samples for each validation, and one sum over ranks. Layers in evaluation mode are left alone. Source:
    ClassyVision PreciseBatchNormHook; "Rethinking 'Batch' in BatchNorm" (Wu and Johnson, 2021).
    """

    num_samples: Annotated[int, Ge(1)]
    """Number of training samples over all ranks, each at most once."""
    cache_samples: bool = False
    """Keeps these samples in host memory instead of loading them again."""

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
