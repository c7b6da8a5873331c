"""A new order of the training data in each epoch."""

import logging
from dataclasses import dataclass

from hooks.hook import Hook
from hooks.loader_parts import find_parts_with_epoch
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State

logger = logging.getLogger("hookyard")


@dataclass
class DistSamplerSeed(Hook):
    """Give each epoch a new order of the training data, by `set_epoch` of the sampler.

    Calls `set_epoch(state.epoch)` on the loader, its samplers, its dataset, the datasets in this
    one, their transforms and the collator, if they have it. Warns once if several ranks train and
    none has it. Source: MMEngine DistSamplerSeedHook, VISSL SetDataSamplerEpochHook.
    """

    def __post_init__(self) -> None:
        self._warned = False

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_phase_start(self, state: State) -> None:
        if state.phase != "train":
            return
        loader = state.loaders.get("train")
        with_epoch = find_parts_with_epoch(loader)
        for part in with_epoch:
            part.set_epoch(state.epoch)
        if not with_epoch and state.world_size > 1 and not self._warned:
            self._warned = True
            logger.warning(
                "the training loader (%s) has no set_epoch, so epochs may repeat the same order",
                type(loader).__name__,
            )
