"""Collects garbage at the same step on all ranks."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, paced_by
from hooks.parts.cleanup import Cleanup
from hooks.state import State


@dataclass
class GarbageCollection(Cleanup, Hook):
    """Switches Python's automatic garbage collection off and collects every few iterations instead.

    Left alone, each rank collects when its own count of objects says so, and all others wait for it in the next
    all-reduce; here all collect in the same iterations, and wait once. No communication. Objects without
    cycles are freed at once as ever. What is there at the start (modules, classes) is frozen: going through it would be
    nearly all of the work. Both are the process's own settings; the hook puts back what it found, also when the run
    fails. Source: torchtnt GarbageCollector.
    """

    every: Iterations = Interval(1000, "iterations")
    """Iterations between two collections; there is one at the start, too."""

    def __post_init__(self) -> None:
        self._disabled = self._frozen = False

    def on_start(self, state: State) -> None:
        self._disabled, self._frozen = gc.isenabled(), gc.get_freeze_count() == 0
        gc.disable()
        gc.collect()
        if self._frozen:  # what somebody else froze could not be told from ours afterwards
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
