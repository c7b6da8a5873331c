"""Garbage collection in the same iterations on all ranks."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, paced_by
from hooks.parts.cleanup import Cleanup
from hooks.state import State


@dataclass
class GarbageCollection(Cleanup, Hook):
    """Python's garbage collection in the same iterations on all ranks, instead of at random times.

        garbage_collection: {every: 1000 iterations}

    Automatic collection pauses one rank at a time, and all others wait for it in the next all-reduce. The hook freezes
    the objects that exist at the start (modules, classes), which makes collections fast. It restores both settings,
    also after a failure. Source: torchtnt GarbageCollector.
    """

    every: Iterations = Interval(1000, "iterations")
    """Iterations between two collections; another one happens at the start."""

    def __post_init__(self) -> None:
        self._disabled = self._frozen = False

    def on_start(self, state: State) -> None:
        self._disabled, self._frozen = gc.isenabled(), gc.get_freeze_count() == 0
        gc.disable()
        gc.collect()
        if self._frozen:  # objects that others froze could not be told apart later
            gc.freeze()

    @paced_by("every")
    def on_step(self, state: State) -> None:
        gc.collect()

    def close(self) -> None:
        if self._frozen:
            gc.unfreeze()
        if self._disabled:
            gc.enable()
        self._disabled = self._frozen = False
