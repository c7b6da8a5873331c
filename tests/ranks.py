"""Runs a function on several gloo ranks, each a process of its own."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

FORKSERVER = multiprocessing.get_context("forkserver")
_WARM = """
torch torch.distributed torch.nn.parallel torch.distributed.fsdp torch.distributed.checkpoint.staging torch._dynamo
torch.profiler torchmetrics torchdata.stateful_dataloader duckdb pandas pyarrow.dataset pydantic.dataclasses pytest
hooks orchestrator.engines.in_process orchestrator.engines.session orchestrator.loop.loop
orchestrator.sweeps.in_process orchestrator.terminal.display
tests.frozen
""".split()
"""Modules that the processes share: imported once, and not by each of them.

Ray is not among them, as it reads its settings from the environment of the process that imports it.
"""
FORKSERVER.set_forkserver_preload(_WARM)
# The server that starts first forks for all. `hookyard verify` asks for one that has imported less.
multiprocessing.set_forkserver_preload = lambda modules: None


def _enter(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    store: str,
    arguments: tuple[Any, ...],
    results: Any,
) -> None:
    try:
        torch.set_num_threads(1)
        os.fsync = lambda file: None  # as in the process of the tests
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=60),
        )
        value = function(rank, world_size, *arguments)
        results.put((rank, value, None))
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


@contextmanager
def _started(
    function: Callable[..., Any], world_size: int, arguments: tuple[Any, ...], results: Any
) -> Iterator[list[Any]]:
    # They meet at a file: a port that is free now may be taken by another test's processes a moment
    # later.
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            FORKSERVER.Process(
                target=_enter,
                args=(function, rank, world_size, f"{folder}/store", arguments, results),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        yield ranks


def until_killed(function: Callable[..., Any], world_size: int = 2, *arguments: Any) -> list[int]:
    """As `on_ranks`, where ranks end without an answer; returns how each process ended."""
    with _started(function, world_size, arguments, FORKSERVER.SimpleQueue()) as ranks:
        for process in ranks:
            process.join(timeout=120)
        return [process.exitcode for process in ranks]


def on_ranks(function: Callable[..., Any], world_size: int = 2, *arguments: Any) -> list[Any]:
    """Calls `function(rank, world_size, *arguments)` on each rank and returns the values in rank
    order.

    The function must be a module's own; tensors should come back as lists or numbers.
    """
    results = FORKSERVER.Queue()
    with _started(function, world_size, arguments, results) as ranks:
        answers = [results.get(timeout=120) for _ in ranks]
        for process in ranks:
            process.join(timeout=30)
    failures = [error for _, _, error in answers if error]
    assert not failures, "\n".join(failures)
    return [value for _, value, _ in sorted(answers, key=lambda answer: answer[0])]
