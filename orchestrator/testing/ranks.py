"""Two gloo ranks, each a process of its own, which stay for the checks of a whole test session."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.loop.world import World

SIZE = 2
ANSWER_S = 120.0
"""How long ranks may take; more means that they wait for each other."""
OTHER_S = 2.0
"""How much longer a rank may take than one that has something to tell, for which it may wait."""


class RanksFailed(RuntimeError):
    """What ranks could not do, in words."""


class Ranks:
    """Two processes in one gloo group that call functions together."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory()
        pipes = [context.Pipe() for _ in range(SIZE)]
        self._connections: list[Connection] = [own for own, _ in pipes]
        # They meet at a file, as any port may be taken a moment later.
        store = f"{self._folder.name}/store"
        self._processes = [
            context.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        self.usable = True
        """Whether they stand where they can be called again."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(world, *arguments)` on each rank, which gives None where there is nothing to tell; the values in
        rank order, without that of a rank that waits for one with something to tell. Raises RanksFailed."""
        try:
            payload = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise RanksFailed(f"what is checked cannot be sent to other processes: {error}") from None
        for connection in self._connections:
            connection.send((list(sys.path), payload))
        return self._answers()

    def _answers(self) -> list[Any]:
        answers: dict[int, tuple[Any, str | None]] = {}
        deadline = monotonic() + ANSWER_S
        while len(answers) < SIZE:
            waiting: dict[Any, int] = {
                connection: rank for rank, connection in enumerate(self._connections) if rank not in answers
            }
            for connection in (ready := wait(list(waiting), max(0.0, deadline - monotonic()))):
                answer = answers[waiting[connection]] = _received(connection)
                if answer != (None, None):
                    deadline = min(deadline, monotonic() + OTHER_S)
            if not ready:
                break
        self.usable = len(answers) == SIZE and not any(error for _, error in answers.values())
        error = next((f"rank {rank}: {error}" for rank, (_, error) in sorted(answers.items()) if error), None)
        told = any(value is not None for value, _ in answers.values())
        if error or not (told or self.usable):
            raise RanksFailed(error or f"after {ANSWER_S:.0f} s a rank still waits for another")
        return [value for _, (value, _) in sorted(answers.items())]

    def end(self) -> None:
        """Ends the processes, wherever they are."""
        for process in self._processes:
            process.kill()
        self._folder.cleanup()


def _received(connection: Any) -> tuple[Any, str | None]:
    try:
        answer: tuple[Any, str | None] = connection.recv()
    except EOFError:
        return None, "its process is gone"
    return answer


def _serve(rank: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=timedelta(seconds=ANSWER_S)
    )
    while True:
        try:
            path, payload = connection.recv()
        except EOFError:
            return
        sys.path[:] = path
        try:
            function, arguments = pickle.loads(payload)
            connection.send((function(World(rank, SIZE, rank), *arguments), None))
        except BaseException:
            connection.send((None, traceback.format_exc()))


_ranks: Ranks | None = None


def on_two_ranks(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`Ranks.call` on two ranks, which are started where there are none that can be called."""
    global _ranks
    if _ranks is None or not _ranks.usable:
        _ranks = Ranks()
    try:
        return _ranks.call(function, *arguments)
    finally:
        if not _ranks.usable:
            _ranks.end()
