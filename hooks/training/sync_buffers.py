"""Equal buffers on all ranks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hooks.distributed import collectives
from hooks.hook import Hook
from hooks.model.buffers import copy_expanded_buffers
from hooks.setup import NEEDS_MODEL, Setup
from hooks.state import State


@dataclass
class SyncBuffers(Hook):
    """Average floating-point and complex buffers across ranks at the end of each training phase,
    before validation.

    BatchNorm running statistics differ between ranks, because each rank sees its own batches.
    Integer and boolean buffers are copied from rank 0. Buffers whose shapes differ between ranks
    stay as they are: a forward pass made or enlarged them for its own batches, such as a table of
    positions. One collective for each dtype. Source: MMEngine SyncBuffersHook.
    """

    collective: ClassVar[bool] = True

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(custom_loop=NEEDS_MODEL)

    def on_phase_end(self, state: State) -> None:
        if state.phase != "train":
            return
        copy_expanded_buffers(state.module)
        if state.world_size == 1:  # other processes of the group may train nothing
            return
        buffers = collectives.select_equal(dict(state.module.named_buffers()))
        collectives.average_in_fp64(buffer for buffer in buffers if _is_inexact(buffer))
        collectives.broadcast(buffer for buffer in buffers if not _is_inexact(buffer))


def _is_inexact(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()
