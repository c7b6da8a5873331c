"""The progress of a rank, as its counters and its stack show it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

import torch

from hooks.state import State
from orchestrator.engines.error_origin import is_user_file
from orchestrator.loop.step.runners import LOOP_CODE
from orchestrator.units import format_count

SLOW_FACTOR = 5
"""Factor on the limit in a phase's first iteration and outside iterations: compilation,
checkpoints, hooks."""

_TORCH = os.path.dirname(torch.__file__)
_COLLECTIVES = os.path.join(_TORCH, "distributed", "")
_SYNC_FILES = (
    os.path.join(_TORCH, "autograd", "graph.py"),
    os.path.join(_TORCH, "nn", "parallel", "distributed.py"),
)
"""Files with the innermost Python line while a rank waits in C++ for other ranks' gradients or
buffers."""


@dataclass(frozen=True)
class RankProgress:
    """Location of a rank in its training, and how long it may stay there."""

    limit_s: float
    """Maximum seconds without progress at this location."""
    is_waiting: bool
    """True if the rank waits for other ranks."""
    place: str
    """Phase, epoch, iteration and line, as text."""


def describe_progress(
    state: State | None,
    frames: Sequence[FrameType],
    *,
    after_s: float,
    start_iteration: int,
    world_size: int,
) -> RankProgress:
    """Describe where a rank is.

    Args:
        state: The state of its loop; None while the model is built.
        frames: The stack of its training thread, innermost frame first.
        after_s: The seconds without progress after which an iteration counts as hung.
        start_iteration: The number of iterations that were done when the attempt began.
        world_size: The number of ranks.
    """
    in_iteration = any(frame.f_code in LOOP_CODE for frame in frames)
    limit_s = after_s
    if not in_iteration or _is_first_iteration(state, start_iteration):
        limit_s = after_s * SLOW_FACTOR

    is_waiting = world_size > 1 and _is_in_collective(frames, in_iteration=in_iteration)
    place = _format_position(state)
    if not is_waiting:
        place += _format_line(frames)
    return RankProgress(limit_s, is_waiting, place)


def _is_first_iteration(state: State | None, start_iteration: int) -> bool:
    """Return whether no iteration of the phase, or of the attempt, is complete."""
    if state is None:
        return True
    return state.phase_iteration == 0 or state.iteration == start_iteration


def _is_in_collective(frames: Sequence[FrameType], *, in_iteration: bool) -> bool:
    if not frames:
        return False
    innermost_file = frames[0].f_code.co_filename
    if innermost_file.startswith(_COLLECTIVES):
        return True
    return in_iteration and innermost_file in _SYNC_FILES


def _format_position(state: State | None) -> str:
    if state is None:
        return "before training, while the model is built"
    done = "before the first iteration"
    if state.phase_length:
        done = f"{state.phase_iteration} of {format_count(state.phase_length, 'iteration')} done"
    return f"{state.phase or 'train'}, epoch {state.epoch_number}, {done}"


def _format_line(frames: Sequence[FrameType]) -> str:
    """Return the innermost line of user code, or of all code."""
    if not frames:
        return ""
    user_frames = (frame for frame in frames if is_user_file(frame.f_code.co_filename))
    frame = next(user_frames, frames[0])
    return f" ({frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name})"
