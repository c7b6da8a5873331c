"""Release of cached GPU memory."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from hooks.hook import Hook, Priority
from hooks.interval import Interval, Iterations, at_interval
from hooks.needs import Needs
from hooks.state import State


@dataclass
class EmptyCache(Hook):
    """Release the GPU memory that CUDA's allocator caches, around phases or every few iterations.

        empty_cache: {after_iter: true, every: 100 iterations}

    This makes room for other processes and reduces fragmentation; the next allocations are slower.
    Acts in train, val and test; no effect without CUDA. Source: MMEngine EmptyCacheHook, VISSL's
    CLEAR_CUDA_CACHE.
    """

    before_epoch: bool = False
    """Release at the start of each phase."""
    after_epoch: bool = True
    """Release at the end of each phase."""
    after_iter: bool = False
    """Release after iterations."""
    every: Annotated[Iterations, Needs("after_iter", True)] = Interval(1, "iterations")
    """Iterations between two releases, with `after_iter`."""

    priority: ClassVar[Priority] = Priority.LOWEST
    """Runs after hooks that may still hold memory."""

    def handles(self, event: str) -> bool:
        """Return whether the hook acts at an event, so that the others cost nothing."""
        is_active = {
            "on_phase_start": self.before_epoch,
            "on_step": self.after_iter,
            "on_phase_end": self.after_epoch,
        }
        return is_active.get(event, super().handles(event))

    def on_phase_start(self, state: State) -> None:
        _empty(state)

    @at_interval("every")
    def on_step(self, state: State) -> None:
        _empty(state)

    def on_phase_end(self, state: State) -> None:
        _empty(state)


def _empty(state: State) -> None:
    if state.device.type == "cuda":
        torch.cuda.empty_cache()
