"""Two gloo ranks in processes of their own, which stay for the checks of a whole test session."""

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
TIMEOUT_S = 120.0
"""Time after which the ranks count as waiting for each other."""
GRACE_S = 2.0
"""Time for the other rank once one has a result, as it may wait for that rank."""


class RanksFailed(RuntimeError):
    """A call on two ranks failed."""


class Ranks:
    """Two processes in one gloo group that call functions together."""

    def __init__(self) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        self._folder = tempfile.TemporaryDirectory()
        pipes = [context.Pipe() for _ in range(SIZE)]
        self._connections: list[Connection] = [own for own, _ in pipes]
        store = f"{self._folder.name}/store"  # a file, as a free port may be taken a moment later
        self._processes = [
            context.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        self.is_usable = True

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return `function(world, *arguments)` of each rank, in rank order.

        A rank that waits for another with a result is left out. Raises RanksFailed.
        """
        try:
            payload = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise RanksFailed(f"the hook or task cannot be sent to other processes: {error}") from None
        for connection in self._connections:
            connection.send((list(sys.path), payload))
        answers: dict[int, tuple[Any, str | None]] = {}
        deadline = monotonic() + TIMEOUT_S
        while len(answers) < SIZE:
            waiting: dict[Any, int] = {
                connection: rank for rank, connection in enumerate(self._connections) if rank not in answers
            }
            ready: Any = wait(list(waiting), max(0.0, deadline - monotonic()))
            if not ready:
                break
            for connection in ready:
                answer = answers[waiting[connection]] = _receive(connection)
                if answer != (None, None):
                    deadline = min(deadline, monotonic() + GRACE_S)
        errors = [f"rank {rank}: {error}" for rank, (_, error) in sorted(answers.items()) if error]
        self.is_usable = len(answers) == SIZE and not errors
        values = [value for _, (value, _) in sorted(answers.items())]
        if errors or (len(answers) < SIZE and all(value is None for value in values)):
            raise RanksFailed(errors[0] if errors else f"a rank still waits for another after {TIMEOUT_S:.0f} s")
        return values

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        self._folder.cleanup()


def _receive(connection: Any) -> tuple[Any, str | None]:
    try:
        answer: tuple[Any, str | None] = connection.recv()
    except EOFError:
        return None, "its process has died"
    return answer


def _serve(rank: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=timedelta(seconds=TIMEOUT_S)
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
    """Call a function on two ranks (`Ranks.call`), and start them if there are none."""
    global _ranks
    if _ranks is None or not _ranks.is_usable:
        _ranks = Ranks()
    try:
        return _ranks.call(function, *arguments)
    finally:
        if not _ranks.is_usable:
            _ranks.kill()
