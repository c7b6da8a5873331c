"""Garbage collection in the same iterations on all ranks."""

import gc
from dataclasses import dataclass

from hooks.hook import Cleanup
from hooks.interval import Interval, Iterations, at_interval
from hooks.state import State


@dataclass
class GarbageCollection(Cleanup):
    """Collect Python's garbage in the same iterations on all ranks, so that they do not wait for
    each other.

        garbage_collection: {every: 1000 iterations}

    Python collects when a rank has made enough objects, and that is at another time on each rank.
    The collection pauses that rank, and all others wait for it in the next all-reduce. The hook
    freezes the objects that exist at the start, such as modules and classes, so that no collection
    visits them again. At the end, also after a failure, it unfreezes all objects and enables
    automatic collection if it was enabled before.
    Source: torchtitan GarbageCollection, TorchTNT GarbageCollector.
    """

    every: Iterations = Interval(1000, "iterations")
    """Iterations between two collections. One more happens at the start."""

    def __post_init__(self) -> None:
        self._was_enabled = False

    def on_start(self, state: State) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()

    @at_interval("every")
    def on_step(self, state: State) -> None:
        gc.collect()

    def close(self) -> None:
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()
        self._was_enabled = False
