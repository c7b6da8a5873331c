"""The hang watch: a thread that compares the loop's counters, so the loop itself does nothing. Runs
in workers."""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

import torch

from hooks.state import State
from orchestrator.disk.hang import HangReports, RankStack, tick_s
from orchestrator.engines.error_origin import is_user_file
from orchestrator.errors import HookyardError
from orchestrator.experiment.sections.training import Hang
from orchestrator.loop.step.auto_microbatching import MicrobatchRunner
from orchestrator.loop.step.closure import ClosureRunner
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.turns import TurnRunner
from orchestrator.loop.world import World
from orchestrator.units import format_count

SLOW_FACTOR = 5
"""Factor on the limit in a phase's first iteration and outside iterations: compilation,
checkpoints, hooks."""
REQUESTED_LIMIT_S = 2.0
"""Seconds without progress after which a rank reports its stack if the driver has requested
stacks."""
_MAX_FRAMES = 12

_log = logging.getLogger("hookyard")
_RUNNERS = (IterationRunner, MicrobatchRunner, ClosureRunner, TurnRunner)
_LOOPS = {IterationRunner.infer.__code__, *(runner._train.__code__ for runner in _RUNNERS)}
_TORCH = os.path.dirname(torch.__file__)
_COLLECTIVES = os.path.join(_TORCH, "distributed", "")
_SYNC_FILES = (
    os.path.join(_TORCH, "autograd", "graph.py"),
    os.path.join(_TORCH, "nn", "parallel", "distributed.py"),
)
"""Files with the innermost Python line while a rank waits in C++ for other ranks' gradients or
buffers."""


class HangWatch:
    """Watchdog thread of one rank. It reports the rank's stack while any rank has made no progress
    within the limit.

    Progress is a new iteration, epoch or phase. `limits` holds the seconds without progress, and
    the action. With the action `fail`, `end` ends the hung rank; if that is impossible, it ends the
    first rank that waits for it. Time while this process is stopped (SIGSTOP) does not count.
    """

    def __init__(
        self,
        reports: HangReports,
        world: World,
        limits: Hang,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._reports = reports
        self._world = world
        self._limits = limits
        self._end = end
        self._tick_s = tick_s(limits.after)
        self._state: State | None = None
        self._start_iteration = 0
        self._progress: tuple[Any, ...] = ()
        self._idle_s = 0.0
        self._has_reported = False
        self._thread_id = threading.get_ident()
        self._paused = threading.Event()
        self._stop = threading.Event()
        self._stack_file: IO[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    def __enter__(self) -> Self:
        path = self._reports.stack_file(self._world.rank) if self._end is end_process else None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Open until the watch ends: faulthandler's thread writes to it.
            self._stack_file = open(path, "w")
            self._arm(SLOW_FACTOR * self._limits.after)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * self._tick_s)
        if self._stack_file:
            faulthandler.cancel_dump_traceback_later()
            self._stack_file.close()
            path = Path(self._stack_file.name)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # another rank still has a file in the folder
                path.parent.rmdir()
                path.parent.parent.rmdir()

    def follow(self, state: State) -> None:
        """Read progress from `state` from now on."""
        self._state = state
        self._start_iteration = state.iteration

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count time within the block, in which the rank waits for its driver."""
        self._paused.set()
        try:
            yield
        finally:
            self._paused.clear()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(min(1.0, self._tick_s)):
            now = time.monotonic()
            if now - before < self._tick_s and not self._reports.has_request():
                continue
            try:
                self._check(min(now - before, 2 * self._tick_s))
            except (HookyardError, OSError) as error:
                _log.warning("rank %d cannot report its stack: %s", self._world.rank, error)
            before = now
        self._withdraw()

    def _check(self, passed_s: float) -> None:
        state = self._state
        progress: tuple[Any, ...] = ()
        if state:
            progress = (state.phase, state.epoch, state.iteration, state.phase_iteration)
        has_progress = progress != self._progress or self._paused.is_set()
        self._progress = progress
        self._idle_s = 0.0 if has_progress else self._idle_s + passed_s
        report = self._make_report()
        self._arm(max(report.limit_s, self._limits.after))
        if not report.is_over_limit and not set(self._reports.ranks_over_limit()) - {report.rank}:
            return self._withdraw()
        self._has_reported = True
        frame = sys._current_frames().get(self._thread_id)
        lines = traceback.format_stack(frame, limit=_MAX_FRAMES)
        self._reports.write(replace(report, stack="".join(lines)))
        return self._act(report)

    def _withdraw(self) -> None:
        if self._has_reported:
            self._reports.withdraw(self._world.rank)
        self._has_reported = False

    def _arm(self, limit_s: float) -> None:
        """Make faulthandler write the stack if this thread cannot get the interpreter lock within
        the limit."""
        if self._stack_file:
            faulthandler.cancel_dump_traceback_later()
            self._stack_file.truncate(0)
            faulthandler.dump_traceback_later(
                limit_s, file=self._stack_file, exit=self._limits.action == "fail"
            )

    def _make_report(self) -> RankStack:
        frames: list[FrameType] = []
        if innermost_frame := sys._current_frames().get(self._thread_id):
            frames = [frame for frame, _ in traceback.walk_stack(innermost_frame)]
        in_iteration = any(frame.f_code in _LOOPS for frame in frames)
        state = self._state
        is_first = (
            state is None or state.phase_iteration == 0 or state.iteration == self._start_iteration
        )
        factor = 1 if in_iteration and not is_first else SLOW_FACTOR
        limit_s = REQUESTED_LIMIT_S if self._reports.has_request() else self._limits.after * factor
        innermost = frames[0].f_code.co_filename if frames and self._world.world_size > 1 else ""
        is_waiting = innermost.startswith(_COLLECTIVES) or (
            in_iteration and innermost in _SYNC_FILES
        )
        place = f"{_format_position(state)}{'' if is_waiting else _format_line(frames)}"
        return RankStack(
            self._world.rank,
            self._world.node,
            time.time(),
            self._idle_s,
            limit_s,
            is_waiting,
            place,
        )

    def _act(self, report: RankStack) -> None:
        """End this rank if the action is `fail` and it hangs, or is the first to wait for one that
        cannot be ended."""
        if (
            not self._end
            or self._limits.action != "fail"
            or not report.is_over_limit
            or self._reports.has_request()
        ):
            return
        if report.waits and self._reports.ranks_over_limit()[0] != report.rank:
            return
        ranks = self._reports.find_hung_ranks()
        if ranks and (not report.waits or not ranks.hung):
            self._end(str(ranks))


def end_process(reason: str) -> None:
    """End this process at once. Its driver finds the reason in the run's folder."""
    os._exit(1)


def _format_position(state: State | None) -> str:
    if state is None:
        return "before training, while the model is built"
    done = "before the first iteration"
    if state.phase_length:
        done = f"{state.phase_iteration} of {format_count(state.phase_length, 'iteration')} done"
    return f"{state.phase or 'train'}, epoch {state.epoch_number}, {done}"


def _format_line(frames: list[FrameType]) -> str:
    """Return the innermost line of user code, or of all code."""
    own = (frame for frame in frames if is_user_file(frame.f_code.co_filename))
    frame = next(own, frames[0] if frames else None)
    if frame is None:
        return ""
    return f" ({frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name})"
