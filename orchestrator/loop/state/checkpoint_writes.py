"""Writing a checkpoint's files: at once, or in the background, where a thread writes a copy in this host's memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.world import World

Entries = Mapping[str, dict[str, Any]]
"""Entries of a manifest, by the names of the files."""

_POLL_S = 0.5
"""The longest pause of the master between two looks for the files of other ranks."""
OTHERS_S = 10.0
"""Seconds that the master waits, after its own files, for the files of ranks that may have died."""


class Background:
    """A thread beside the training that writes copies of checkpoints, and deletes old ones. Used in workers.

    The copies are in memory that is kept from one checkpoint to the next, page-locked where they come from a GPU.
    Source: torch.distributed.checkpoint.async_save.
    """

    def __init__(self, device: torch.device, store: CheckpointStore) -> None:
        from torch.distributed.checkpoint.staging import (
            DefaultStager,
            StagingOptions,
        )  # which takes half a second

        self._device, on_gpu = device, device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=on_gpu
        )
        self._new_stager = partial(DefaultStager, options)
        self._stager = self._new_stager()
        finalize(self, self._stager.close)  # it refers to itself in a cycle, and so keeps all copies
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._deletions: list[Future[None]] = []
        store.index.defer = lambda call: self._deletions.append(self.thread.submit(call))

    def copied(self, tree: Any) -> Any:
        """Return a copy on the CPU, whole when this returns. Tensors that share memory share it in the copy."""
        tensors: dict[Any, Tensor] = {id(tensor): tensor for tensor in placeholders.tensors_in(tree)}
        try:
            copies: Any = self._stager.stage(
                {key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in tensors.items()}
            )
        except torch.AcceleratorError:
            raise
        except (RuntimeError, AssertionError) as error:
            raise CheckpointError(
                f"the checkpoint's tensors cannot be copied to this host's memory: {error}. Set"
                " hooks.checkpoint.background: false"
            ) from error
        if torch.__version__ < "2.13":
            self._stager = self._new_stager()  # which closes itself after it has copied
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the stager waits for the current device, which may be another
        # The stager changes parameters, and containers other than dicts. So it gets the tensors only.
        return deepcopy(tree, {key: _like(copies[key], tensor) for key, tensor in tensors.items()})

    def finish_deletions(self) -> None:
        """Wait for the last deletion; raises an error of one."""
        deletions, self._deletions = self._deletions, []
        for deletion in deletions:
            deletion.result()


def _like(copy: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy with the tensor's class and `requires_grad`."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


class ForegroundWrite:
    """This rank's files of one checkpoint, written by the loop itself. Used in workers."""

    is_under_way = has_failed = False
    """Whether this rank has more to do, and whether it could not do its part."""

    def __init__(
        self, store: CheckpointStore, name: str, files: Mapping[str, Any], commit: Callable[[Entries], None]
    ) -> None:
        self._store, self._name, self._files, self._commit = store, name, files, commit
        self.seconds = 0.0
        """Seconds that it has taken beside the training."""
        self.entries: Entries = {}
        """Files that this rank has written."""
        self._failure: BaseException | None = None
        self._begin()

    def _begin(self) -> None:
        try:
            self.entries = self._store.write_files(self._name, self._files)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            self._failure = error

    def failure(self) -> BaseException | None:
        """Wait until this rank's files are written, or cannot be; returns the error."""
        return self._failure

    def publish(self, entries: Entries) -> None:
        """Put the checkpoint in its place, made of the files of all ranks. Master."""
        self._commit(entries)

    def end(self, others_s: float = OTHERS_S) -> bool:
        """Return whether the checkpoint is in its place, once nothing of it is under way.

        The master waits `others_s` longer than for its own files for those of ranks that may be gone. Asks no rank;
        raises this rank's own error.
        """
        return False


class BackgroundWrite(ForegroundWrite):
    """The same in a thread, which calls no collective.

    Each rank writes a file with its entries, and the master's thread commits once all are there.
    """

    def __init__(self, thread: ThreadPoolExecutor, world: World, *arguments: Any) -> None:
        self._thread, self._world, self._given_up = thread, world, Event()
        super().__init__(*arguments)

    def _begin(self) -> None:
        self._folder = self._store.storage / self._store.staging_folder(self._name)
        self._written = self._thread.submit(self._write)
        self._published = self._thread.submit(self._publish) if self._world.is_master else self._written

    @property
    def is_under_way(self) -> bool:  # type: ignore[override]
        return not self._published.done()

    @property
    def has_failed(self) -> bool:  # type: ignore[override]
        return any(part.done() and part.exception() for part in (self._written, self._published))

    def failure(self) -> BaseException | None:
        return self._written.exception()

    def publish(self, entries: Entries) -> None:
        self._published.result()

    def end(self, others_s: float = OTHERS_S) -> bool:
        wait([self._written])
        wait([self._published], timeout=others_s)
        self._given_up.set()
        self._written.result()
        return self._published.result()

    def _write(self) -> bool:
        began = perf_counter()
        self.entries = self._store.write_files(self._name, self._files)
        self._files = {}
        if not self._world.is_master:
            self._folder.write(_entries_file(self._world.rank), json.dumps(self.entries))
        self.seconds = perf_counter() - began
        return True

    def _publish(self) -> bool:
        if not self.entries:
            return False
        entries = dict(self.entries)
        began, others = perf_counter(), [_entries_file(rank) for rank in range(1, self._world.world_size)]
        pause_s = 0.01
        while others and not {*others} <= {*self._folder.names()}:
            if self._given_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _POLL_S)
        for text in self._folder.each(self._folder.read, others):
            entries |= json.loads(text)
        self._folder.each(self._folder.delete, others)
        self._commit(entries)
        self.seconds += perf_counter() - began
        return True


def _entries_file(rank: int) -> str:
    return f"rank-{rank:04d}.json"
