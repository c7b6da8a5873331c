"""Equal buffers on all ranks."""

from dataclasses import dataclass
from typing import ClassVar

from hooks.hook import NEEDS_MODEL, Hook, Setup
from hooks.parts import collectives
from hooks.state import State


@dataclass
class SyncBuffers(Hook):
    """Mean of floating-point buffers across ranks, set at the end of each training phase, before validation.

    BatchNorm running statistics differ between ranks, because each rank sees its own batches. Integer and boolean
    buffers are copied from rank 0. One collective for each dtype. Source: MMEngine SyncBuffersHook.
    """

    collective: ClassVar[bool] = True

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        buffers = list(state.module.buffers())
        collectives.average(buffer for buffer in buffers if buffer.is_floating_point())
        collectives.broadcast(buffer for buffer in buffers if not buffer.is_floating_point())
