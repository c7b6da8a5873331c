"""Ranks of a replay or a verification, each in a fresh process, with gloo on the CPU. Needs no
Ray."""

import multiprocessing
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from hooks import Hook
from hooks.private_torch import COMPILER
from hooks.training.time_limit import TimeLimit
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import HookyardError, RunError
from orchestrator.loop.world import World

_LOGGERS = ("hooks.logs.", "hooks.checkpointing.")
"""Modules of hooks that only produce output, such as logs and checkpoints."""


def without_loggers(hooks: Mapping[str, Hook]) -> dict[str, Hook]:
    """Return hooks without those that only write files, and without time limits."""
    return {
        name: hook
        for name, hook in hooks.items()
        if not isinstance(hook, TimeLimit)
        and not (hook.observes and type(hook).__module__.startswith(_LOGGERS))
    }


@contextmanager
def convert_errors(world: World) -> Iterator[None]:
    """Raise RankFailed for errors of user code; those of Hookyard pass."""
    try:
        yield
    except HookyardError:
        raise
    except Exception as error:
        raise RankFailed.from_error(world.rank, world.world_size, error) from error


def train_in_processes(train: Callable[[World], Any], world_size: int, threads: int) -> list[Any]:
    """Call a picklable function on each rank, and return the results. Raises RunError with the first
    error."""
    _start_forkserver()
    with tempfile.TemporaryDirectory(prefix="hookyard-ranks-") as folder:
        processes = start_processes(
            _train_rank,
            (train, world_size, folder, threads),
            nprocs=world_size,
            join=False,
            daemon=False,
            start_method="forkserver",
        )
        try:
            while not processes.join():
                pass
        except ProcessException as error:
            message = Path(folder, "failed")
            reason = message.read_text() if message.exists() else str(error)
            raise RunError(reason) from None
        finally:
            for process in processes.processes:
                process.kill()
                process.join()
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(world_size)]


def _start_forkserver() -> None:
    """Start the process that forks ranks. Ctrl-C interrupts neither it nor the ranks, because this
    process ends them."""
    # Imported once, not by each rank.
    multiprocessing.set_forkserver_preload([COMPILER, "orchestrator.replay.replay"])
    resource_tracker.ensure_running()  # unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Wait for its imports, because an interrupt meanwhile must not leave a rank that starts later.
    first = multiprocessing.get_context("forkserver").Process(target=int)
    first.start()
    first.join()
    first.close()


def _train_rank(
    rank: int, train: Callable[[World], Any], world_size: int, folder: str, threads: int
) -> None:
    """Train one rank. Files in the folder let it find the others, and hold its result or error."""
    # This process may be forked by one that others started, in which Ctrl-C is not blocked.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # Loader processes start as in a run, and not as this process did, which would import everything
    # again.
    multiprocessing.set_start_method(None, force=True)
    torch.set_num_threads(threads)
    if world_size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world_size
        )
    world = World(rank, world_size, rank)
    try:
        with convert_errors(world):
            result = train(world)
    except HookyardError as error:
        message = Path(folder, "failed")
        if not message.exists():
            message.write_text(str(error))
        raise SystemExit(1) from None
    Path(folder, str(rank)).write_bytes(pickle.dumps(result))
    if world_size > 1:
        dist.destroy_process_group()
