"""The watch over a rank's progress: where it stands is read from its stack, so that the loop says nothing and costs
nothing. Worker process, in a thread beside the loop."""

from __future__ import annotations

import faulthandler
import inspect
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import IO, Any, Self

import torch

from hooks.state import State
from orchestrator.config.sections.experiment import Hang
from orchestrator.engines.rank_failures import is_own_file
from orchestrator.errors import HookyardError
from orchestrator.loop.clock.span_clock import INTERVALS
from orchestrator.loop.step.iterations import Iterations
from orchestrator.loop.world import World
from orchestrator.records.standstill import StandstillNotes, Whereabouts, tick_s

PATIENCE = 5
"""How many times as long as an iteration the first one may take, and what is none: compiling, a checkpoint, a hook
between phases."""
ASKED_AFTER_S = 2.0
"""How long a rank stands that says where, once it is asked."""
_MOST_FRAMES = 12

_log = logging.getLogger("hookyard")
_LOOPS = (Iterations.train.__code__, Iterations.evaluate.__code__)
_MARKS = [name for name in Iterations.train.__code__.co_varnames if name.startswith("t_")]
_TORCH = os.path.dirname(torch.__file__)
_COLLECTIVES = os.path.join(_TORCH, "distributed", "")
_EXCHANGES = (os.path.join(_TORCH, "autograd", "graph.py"), os.path.join(_TORCH, "nn", "parallel", "distributed.py"))
"""Where the innermost line is Python's while a rank waits in C++ for the gradients or buffers of the others."""


class StandstillWatch:
    """Looks now and then whether a rank has made progress; where it stands for too long, and while another one does,
    leaves word of where it is.

    Progress is another iteration, epoch or phase. `limits` says after how many seconds without any, and what follows:
    with the action `fail` the rank that stands is ended by `end`, which is told why; where that rank cannot
    be, the first that waits for it. A process that is stopped or kept from running meanwhile does not count as
    standing.
    """

    def __init__(
        self, notes: StandstillNotes, world: World, limits: Hang, end: Callable[[str], None] | None = None
    ) -> None:
        self._notes, self._world, self._limits, self._end = notes, world, limits, end
        self._tick_s = tick_s(limits.after)
        self._state: State | None = None
        self._began_at = 0
        self._progress: tuple[Any, ...] = ()
        self._stood_s = 0.0
        self._left_word = False
        self._thread_id = threading.get_ident()
        self._away = threading.Event()
        self._left = threading.Event()
        self._stack_file: IO[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="standstill-watch", daemon=True)

    def __enter__(self) -> Self:
        path = self._notes.stack_file(self._world.rank) if self._end is end_process else None
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stack_file = open(path, "w")  # a thread writes to it as long as the watch lasts
            self._arm(PATIENCE * self._limits.after)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()
        self._thread.join(timeout=2 * self._tick_s)
        if self._stack_file:
            faulthandler.cancel_dump_traceback_later()
            self._stack_file.close()
            path = Path(self._stack_file.name)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # of another rank, which is not done
                path.parent.rmdir()
                path.parent.parent.rmdir()

    def over(self, state: State) -> None:
        """Says whose progress it is, from here on."""
        self._state, self._began_at = state, state.iteration

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within it the rank waits for whoever drives it, and does not stand."""
        self._away.set()
        try:
            yield
        finally:
            self._away.clear()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._left.wait(min(1.0, self._tick_s)):
            now = time.monotonic()
            if now - before < self._tick_s and not self._asked():
                continue
            try:
                self._look(min(now - before, 2 * self._tick_s))
            except (HookyardError, OSError) as error:
                _log.warning("rank %d cannot leave word of where it is: %s", self._world.rank, error)
            before = now
        self._withdraw()

    def _look(self, passed_s: float) -> None:
        state = self._state
        progress = (state.phase, state.epoch, state.iteration, state.phase_iteration) if state else ()
        moved = progress != self._progress or self._away.is_set()
        self._progress, self._stood_s = progress, 0.0 if moved else self._stood_s + passed_s
        words = self._whereabouts()
        self._arm(max(words.limit_s, self._limits.after))
        if not words.is_over_limit and not set(self._notes.over_limit()) - {words.rank}:
            return self._withdraw()
        self._left_word = True
        stack = "".join(traceback.format_stack(sys._current_frames().get(self._thread_id), limit=_MOST_FRAMES))
        self._notes.leave(replace(words, stack=stack))
        return self._act(words)

    def _asked(self) -> bool:
        with suppress(HookyardError, OSError):
            return self._notes.asked()
        return False

    def _withdraw(self) -> None:
        if self._left_word:
            self._notes.withdraw(self._world.rank)
        self._left_word = False

    def _arm(self, limit_s: float) -> None:
        """Has the stack written by a thread that needs no interpreter, where this one does not get it for too long."""
        if self._stack_file:
            faulthandler.cancel_dump_traceback_later()
            self._stack_file.truncate(0)
            faulthandler.dump_traceback_later(limit_s, file=self._stack_file, exit=self._limits.action == "fail")

    def _whereabouts(self) -> Whereabouts:
        frames = _frames(sys._current_frames().get(self._thread_id))
        in_loop = next((frame for frame in frames if frame.f_code in _LOOPS), None)
        span = _span(in_loop.f_code, in_loop.f_lineno) if in_loop else None
        state = self._state
        began = state is None or state.phase_iteration == 0 or state.iteration == self._began_at
        limit_s = ASKED_AFTER_S if self._asked() else self._limits.after * (1 if in_loop and not began else PATIENCE)
        waits = bool(frames) and self._world.world_size > 1 and _waits(frames[0].f_code.co_filename, span)
        place = f"{_position(state)}{f', {span}' if span else ''}{'' if waits else _line(frames)}"
        return Whereabouts(self._world.rank, self._world.node, time.time(), self._stood_s, limit_s, waits, place)

    def _act(self, words: Whereabouts) -> None:
        """Ends this rank where that is asked for and it stands, or is the first of those that wait for one that cannot
        be ended."""
        if not self._end or self._limits.action != "fail" or not words.is_over_limit or self._asked():
            return
        if words.waits and self._notes.over_limit()[0] != words.rank:
            return
        found = self._notes.judged()
        if found and (not words.waits or not found.standing):
            self._end(str(found))


def end_process(why: str) -> None:
    """Ends this process; why stands in the run's folder, for whoever finds it gone."""
    os._exit(1)


def _frames(frame: FrameType | None) -> list[FrameType]:
    """A stack, innermost first."""
    found = []
    while frame:
        found.append(frame)
        frame = frame.f_back
    return found


@cache
def _span(code: CodeType, line: int) -> str:
    """The span of an iteration that a line of its loop is charged to: that which ends with the next mark of the
    clock."""
    lines, first = inspect.getsourcelines(code)
    for text in lines[line - first :]:
        mark = re.search(r"\b(t_\w+) =.*\bmark\(\)", text)
        if mark:
            return INTERVALS[_MARKS.index(mark[1])]
    return INTERVALS[-1]


def _waits(innermost: str, span: str | None) -> bool:
    return innermost.startswith(_COLLECTIVES) or (span in ("forward_s", "backward_s") and innermost in _EXCHANGES)


def _position(state: State | None) -> str:
    if state is None:
        return "before training, building what is trained"
    done = (
        f"{state.phase_iteration} of {state.phase_length} iterations done"
        if state.phase_length
        else "before the first iteration"
    )
    return f"{state.phase or 'train'}, epoch {state.epoch - state.epoch_completed}, {done}"


def _line(frames: list[FrameType]) -> str:
    """The innermost line of the experiment's own code, or of all."""
    frame = next((one for one in frames if is_own_file(one.f_code.co_filename)), frames[0] if frames else None)
    return f" ({frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name})" if frame else ""
