"""Shuffles anew in each epoch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from hooks.hook import NEEDS_MODEL, Hook, Setup
from hooks.state import State

logger = logging.getLogger("hookyard")


@dataclass
class DistSamplerSeed(Hook):
    """Tells the training sampler which epoch is under way, so that each epoch has its own order.

    Calls `set_epoch(state.epoch)` on whatever has it: the loader's sampler, its batch sampler, the sampler inside
    that, its dataset, the loader itself. The number is the epoch's own and does not depend on how often validation
    runs. Every rank does the same; no communication. Warns once where several ranks train and nothing has
    `set_epoch`. Source: MMEngine DistSamplerSeedHook, VISSL SetDataSamplerEpochHook.
    """

    def __post_init__(self) -> None:
        self._warned = False

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_phase_start(self, state: State) -> None:
        if state.phase != "train":
            return
        loader = state.loaders.get("train")
        listeners = _listeners(loader)
        for listener in listeners:
            listener.set_epoch(state.epoch)
        if not listeners and state.world_size > 1 and not self._warned:
            self._warned = True
            logger.warning(
                "nothing in the training loader (%s) has set_epoch, so every epoch may come in the same order; "
                "use a sampler that has it, such as torch's DistributedSampler",
                type(loader).__name__,
            )


def _listeners(loader: Any) -> list[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    candidates = (
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
        loader,
    )
    return list({id(one): one for one in candidates if callable(getattr(one, "set_epoch", None))}.values())
