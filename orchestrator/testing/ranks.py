"""Two gloo ranks in separate processes, which persist for a whole test session."""

import atexit
import multiprocessing
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.pool import AsyncResult, MaybeEncodingError, Pool  # type: ignore[attr-defined]
from time import monotonic, sleep
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from orchestrator.loop.world import World

SIZE = 2
TIMEOUT_S = 120.0
"""Time after which the ranks are considered deadlocked."""
GRACE_PERIOD_S = 2.0
"""Time for the second rank to finish after the first: it may be waiting for the first."""
_pools: list[Pool] = []
"""One process for each rank."""


class _Answer(NamedTuple):
    """Answer of a call on one rank: a result or an error."""

    value: Any = None
    error: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.value is None and self.error is None


class RanksFailed(RuntimeError):
    """A call on two ranks failed."""


def on_two_ranks(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return `function(world, *arguments)` of each rank, in rank order.

    Omits a rank that is waiting for a rank which has already returned.

    Raises:
        RanksFailed: With the first error, or if both ranks wait.
    """
    try:
        call = pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise RanksFailed(f"the hook or task cannot be sent to other processes: {error}") from None

    if not _pools:
        _start()
    path = [*sys.path]
    answers = _wait(
        [pool.apply_async(_call, (rank, path, call)) for rank, pool in enumerate(_pools)]
    )
    errors = [f"rank {rank}: {answer.error}" for rank, answer in answers.items() if answer.error]
    is_complete = len(answers) == SIZE
    if errors or not is_complete:
        _stop()
    if errors:
        raise RanksFailed(errors[0])

    values = [answers[rank].value for rank in sorted(answers)]
    if not is_complete and all(value is None for value in values):
        raise RanksFailed(f"a rank still waits for another after {TIMEOUT_S:.0f} s")
    return values


def _start() -> None:
    context: Any = multiprocessing.get_context("forkserver")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = f"{folder}/store"  # a file, because a free port may be taken a moment later
    _pools.extend(context.Pool(1, _join_group, (rank, store)) for rank in range(SIZE))


@atexit.register
def _stop() -> None:
    for pool in _pools:
        pool.terminate()
    _pools.clear()


def _wait(pending: Sequence[AsyncResult[_Answer]]) -> dict[int, _Answer]:
    """Return the answers by rank, the first that came first."""
    answers: dict[int, _Answer] = {}
    deadline = monotonic() + TIMEOUT_S
    while len(answers) < SIZE and monotonic() < deadline:
        sleep(0.002)
        for rank, result in enumerate(pending):
            if rank not in answers and result.ready():
                answers[rank] = _read(result)
                if not answers[rank].is_empty:
                    deadline = monotonic() + GRACE_PERIOD_S
    return answers


def _read(result: AsyncResult[_Answer]) -> _Answer:
    try:
        return result.get()
    except MaybeEncodingError as error:
        return _Answer(error=f"the result cannot be sent: {error}")


def _join_group(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=SIZE,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def _call(rank: int, path: Sequence[str], call: bytes) -> _Answer:
    sys.path[:] = path
    try:
        function, arguments = pickle.loads(call)
        return _Answer(function(World(rank, SIZE, rank), *arguments))
    except BaseException:
        return _Answer(error=traceback.format_exc())
