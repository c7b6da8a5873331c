"""Makes the buffers of all ranks the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hooks.hook import NEEDS_MODEL, Hook, Setup
from hooks.parts import coalesced_collectives as coalesced
from hooks.state import State


@dataclass
class SyncBuffers(Hook):
    """Averages floating-point buffers over ranks whenever a training phase ends, so before every validation.

    Each rank normalizes by its own batches, so running statistics drift apart. `running_var` is the plain mean too:
    within a rank it is already a mean of within-batch variances, and this extends that mean over the ranks' batches.
    Integer and boolean buffers such as `num_batches_tracked` cannot be averaged and are taken from rank 0. One
    collective for each dtype; nothing on a single rank. Source: MMEngine SyncBuffersHook.
    """

    collective: ClassVar[bool] = True

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        buffers = list(state.module.buffers())
        coalesced.average(buffer for buffer in buffers if buffer.is_floating_point())
        coalesced.broadcast(buffer for buffer in buffers if not buffer.is_floating_point())
