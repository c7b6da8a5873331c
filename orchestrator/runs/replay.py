"""A moment of a run again, on this machine and without Ray: from the nearest checkpoint before it, with nothing written
into the run."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from hooks import Hook
from hooks.training.time_limit import TimeLimit
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.config.load import to_dict
from orchestrator.config.text.source import InitialWeights
from orchestrator.engines.in_process import device_of
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import CheckpointError, HookyardError, RunError, UsageError
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.torch_settings import thread_count, torch_threads
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.records.metadata import Attempt
from orchestrator.records.run_folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.runs.samples import resolved_as_in
from orchestrator.stats.aggregate import quantities
from orchestrator.stats.read.tables import load
from orchestrator.stats.write.recorder import Recorder
from orchestrator.stats.write.rows import Layout
from orchestrator.storage import Storage
from orchestrator.task import trains_itself

_WRITE_FOR_OTHERS = ("hooks.logs.", "hooks.checkpointing.")
"""Where the hooks lie that only observe, and write for others."""
_MEASURED = ("s", "bytes", "/s", "%", "°C", "W")
"""Units of what is another each time."""


@dataclass(frozen=True)
class Replay:
    """What came of it."""

    checkpoint: str | None
    """Where it began; None is the beginning of the run."""
    row: pd.DataFrame
    """Of the iteration, on the rank asked for: each number as `stored` and `replayed`, and whether they are the `same`
    bit for bit. Nothing is stored of the iteration in which a run failed."""
    threads: int
    """Number of torch threads of each rank."""
    losses: pd.DataFrame
    """Of all ranks and iterations on the way: `loss` and `loss_replayed` by rank and iteration."""

    @property
    def agrees(self) -> bool:
        """Whether all losses on the way are bit for bit those that are stored."""
        return bool(_same(self.losses["loss"], self.losses["loss_replayed"]).all())


class _Reached(GeneratorExit):
    """The iteration is there, and its row: nobody asks the loop for more."""


class _UpTo(Recorder):
    """Ends the loop with the row of a training iteration."""

    def __init__(self, iteration: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._iteration, self._trains = iteration, False

    def begin(self, labels: Mapping[str, Any], layout: Layout) -> None:
        self._trains = labels["phase"] == "train"
        super().begin(labels, layout)

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        super().append(row, numbers)
        if self._trains and numbers[0] >= self._iteration:
            raise _Reached


@dataclass(frozen=True)
class _Way:
    """Where it begins and ends. Plain data, for any process."""

    run: str
    attempt: Attempt
    checkpoint: str | None
    iteration: int
    rows: str
    """The folder that takes the rows, and whatever hooks write."""

    def go(self, world: World, hooks: Mapping[str, Hook]) -> None:
        """Trains from its beginning to its end on one rank; raises UsageError where the run is over before, RankFailed
        where the rank fails."""
        folder = RunFolder(self.run)
        resolved = resolved_as_in(folder, self.attempt)
        own = {name: hook for name, hook in resolved.hooks.items() if not _is_left_out(hook)}
        found = folder.metadata().init
        identity = {"rank": world.rank, "node": world.node, "attempt": 0}
        loop = Loop(
            resolved.task,
            resolved.experiment,
            {**own, **hooks},
            RunContext(
                world=world,
                recorder=_UpTo(self.iteration, Storage(self.rows), f"stats/attempt=0/rank={world.rank}", identity),
                store=_store(folder),
                artifacts=Path(self.rows),
                config={**to_dict(resolved.experiment), "sweep": None},
                name=folder.name,
            ),
            origin=InitialWeights(**found) if found else None,
            resumes=self.checkpoint is not None,
        )
        if self.checkpoint:
            loop.restore(self.checkpoint)
        loop.saving.store = None  # nothing is saved from here on
        try:
            for _ in loop.run():
                pass
        except _Reached:
            return
        except HookyardError:
            raise
        except Exception as error:  # whatever user code raises, it is told with its rank
            raise RankFailed.from_error(world.rank, error) from error
        raise UsageError(f"{folder} is over before iteration {self.iteration}")


def replay(run: Run, iteration: int, rank: int = 0, hooks: Mapping[str, Hook] | None = None) -> Replay:
    """Trains all ranks of a run again up to an iteration, in this process or in as many as there were ranks, which meet
    over gloo on the CPU; `hooks` come in addition, for a single rank.

    Raises UsageError for an iteration or a rank that has no row, but for the iteration in which the run failed, and for
    what cannot be gone through again; RunError where a rank fails.
    """
    folder = run.folder
    rows = run.load_stats(where=f"phase = 'train' and iteration = {iteration} and rank = {rank}")
    attempts = {attempt.number: attempt for attempt in folder.attempts()}
    number = _last_attempt(run, attempts.values(), iteration, rank) if rows.empty else int(rows["attempt"].iloc[0])
    if number not in attempts:
        raise folder.lost_attempt(number)
    attempt = attempts[number]
    resolved = resolved_as_in(folder, attempt)
    if trains_itself(type(resolved.task)):
        raise UsageError(f"the task of {folder} trains by itself, and is not replayed")
    if attempt.world_size > 1 and (hooks or resolved.experiment.workers.gpu):
        what = "a debugger or a hook of one's own" if hooks else "GPUs"
        raise UsageError(
            f"iteration {iteration} of {folder} was trained by {attempt.world_size} ranks, which are replayed in"
            f" processes over gloo, without {what}"
        )
    checkpoint, begun = _nearest(folder, iteration)
    _refuse_others_between(folder, attempts.values(), attempt, begun)
    with tempfile.TemporaryDirectory(prefix="hookyard-replay-") as place:
        way = _Way(folder.location, attempt, checkpoint, iteration, place)
        threads = thread_count(resolved.experiment)
        if attempt.world_size == 1:
            with torch_threads(threads):
                way.go(World(device=device_of(resolved.experiment.workers)), hooks or {})
        else:
            _on_ranks(way, threads)
        again = load(Storage(place), [], where=f"phase = 'train' and iteration > {begun}")
    stored = run.load_stats(
        ["rank", "iteration", "loss"], f"phase = 'train' and iteration > {begun} and iteration <= {iteration}"
    )
    losses = stored.merge(
        again[["rank", "iteration", "loss"]], on=["rank", "iteration"], how="left", suffixes=("", "_replayed")
    )
    row = again[(again["rank"] == rank) & (again["iteration"] == iteration)].iloc[0]
    return Replay(
        checkpoint,
        _beside(row[[]] if rows.empty else rows.iloc[0], row),
        threads,
        losses,
    )


def _last_attempt(run: Run, attempts: Iterable[Attempt], iteration: int, rank: int) -> int:
    """The attempt that failed in an iteration, which has no row; raises UsageError where none did."""
    last = run.rows(f"phase == 'train' and rank == {rank}").aggregate({"last": "max(iteration)"})["last"].max()
    last = 0 if pd.isna(last) else int(last)
    of_rank = [attempt.number for attempt in attempts if rank < attempt.world_size]
    if of_rank and iteration == last + 1 and run.status == "failed":
        return of_rank[-1]
    there = f"the last is {last}" if last else "it has none at all"
    raise UsageError(f"{run.path} has no training row of iteration {iteration} on rank {rank}; {there}")


def _is_left_out(hook: Hook) -> bool:
    """Whether a hook has no part in a replay: it writes for others, or ends the run by the clock."""
    return (hook.observes and type(hook).__module__.startswith(_WRITE_FOR_OTHERS)) or isinstance(hook, TimeLimit)


def _beside(stored: pd.Series, again: pd.Series) -> pd.DataFrame:
    row = stored if len(stored) else again
    numbers = [
        name
        for name in row.index
        if quantities.is_number(row[name]) and quantities.unit(str(name)) not in _MEASURED and name != "attempt"
    ]
    table = pd.DataFrame({"stored": stored.reindex(numbers), "replayed": again.reindex(numbers)}).rename_axis("number")
    return table.assign(same=_same(table["stored"], table["replayed"]))


def _same(one: pd.Series, other: pd.Series) -> pd.Series:
    return (one == other) | (one.isna() & other.isna())


def _store(folder: RunFolder) -> CheckpointStore:
    return CheckpointStore(folder.kept_checkpoints(), folder.name, master=False)


def _nearest(folder: RunFolder, iteration: int) -> tuple[str | None, int]:
    """The last whole checkpoint before an iteration, and the iterations that it has."""
    store = _store(folder)
    for name in reversed(store.names()):
        try:
            begun = store.position(name).iteration
            if begun < iteration:
                store.verify(name)
                return name, begun
        except CheckpointError:  # damaged, or deleted meanwhile by a run that is under way
            continue
    return None, 0


def _refuse_others_between(folder: RunFolder, attempts: Iterable[Attempt], last: Attempt, begun: int) -> None:
    """Raises UsageError where what lies between was trained otherwise than its end, or no checkpoint leads there."""
    for attempt in attempts:
        is_between = attempt.number < last.number and begun < last.position.iteration
        if is_between and (attempt.world_size, attempt.order) != (last.world_size, last.order):
            raise UsageError(
                f"the nearest checkpoint of {folder} is of iteration {begun}, and attempt {last.number} went on from"
                f" iteration {last.position.iteration} with other ranks or batches; keep more checkpoints"
                " (hooks.checkpoint.keep)"
            )
        if not begun and attempt.number == 0 and attempt.checkpoint:
            raise UsageError(f"{folder} began with {attempt.checkpoint}, which is no longer there")


def _on_ranks(way: _Way, threads: int) -> None:
    """Each rank in a process of its own, which ends with this one's call; raises RunError with the first one's words
    where it fails."""
    context, waiting = multiprocessing.get_context("spawn"), list[BaseProcess]()
    try:
        for rank in range(way.attempt.world_size):
            process: BaseProcess = context.Process(target=_rank, args=(way, rank, threads), daemon=True)
            with without_interrupts():
                process.start()
            waiting.append(process)
        while waiting:
            wait([process.sentinel for process in waiting])
            ended, waiting = [one for one in waiting if not one.is_alive()], [one for one in waiting if one.is_alive()]
            for process in ended:
                if process.exitcode:
                    told = Path(way.rows, "failed")
                    raise RunError(
                        told.read_text()
                        if told.exists()
                        else f"a process of the replay ended with exit code {process.exitcode}"
                    )
    finally:
        for process in waiting:
            process.terminate()
            process.join()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ctrl-C is for this process, and never reaches those that are started within it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(way: _Way, rank: int, threads: int) -> None:
    torch.set_num_threads(threads)
    size = way.attempt.world_size
    dist.init_process_group("gloo", init_method=f"file://{way.rows}/ranks", rank=rank, world_size=size)
    try:
        way.go(World(rank, size, rank), {})
    except HookyardError as error:
        told = Path(way.rows, "failed")
        if not told.exists():
            told.write_text(str(error))
        raise SystemExit(1) from None
    dist.destroy_process_group()
