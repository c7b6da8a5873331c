"""Writing a checkpoint's files: at once, or in the background, where a thread writes a copy in this host's memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any, Protocol
from weakref import finalize

import torch
from torch import Tensor, nn

from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.world import World

Entries = Mapping[str, dict[str, Any]]
"""What a manifest says of files, by their names."""

_ASKED_AGAIN_S = 0.5
"""How often the master looks at most for what other ranks have written."""
OTHERS_S = 10.0
"""How long after its own files the master waits for those of ranks that may be gone."""


class Background:
    """A thread beside the training that writes copies of what is saved, and deletes what is given up, one after the
    other. Worker process.

    The copies are one more of all that this rank saves, in memory that is kept from one checkpoint to the next, and
    page-locked where it comes from a GPU. Source: torch.distributed.checkpoint.async_save.
    """

    def __init__(self, device: torch.device, store: CheckpointStore) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # which takes half a second

        self._device, on_gpu = device, device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=on_gpu
        )
        self._new_stager = partial(DefaultStager, options)
        self._stager = self._new_stager()
        finalize(self, self._stager.close)  # it holds itself in a cycle, and all copies with it
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._deletions: list[Future[None]] = []
        store.index.defer = lambda call: self._deletions.append(self.thread.submit(call))

    def copied(self, tree: Any) -> Any:
        """Return a copy on the CPU, which is whole when this returns; tensors that share memory do so in it. Raises
        CheckpointError for what cannot be copied."""
        tensors: dict[Any, Tensor] = {id(tensor): tensor for tensor in placeholders.tensors_in(tree)}
        try:
            copies: Any = self._stager.stage(
                {key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in tensors.items()}
            )
        except torch.AcceleratorError:
            raise
        except (RuntimeError, AssertionError) as error:
            raise CheckpointError(
                f"what a checkpoint holds cannot be copied to this host's memory: {error}. Say"
                " hooks.checkpoint.background: false"
            ) from error
        if torch.__version__ < "2.13":
            self._stager = self._new_stager()  # which closes itself as it has copied
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the stager waits for the current device, which may be another
        # The stager takes tensors only: of a parameter and of other containers than dicts it makes something else.
        return deepcopy(tree, {key: _like(copies[key], tensor) for key, tensor in tensors.items()})

    def finish_deletions(self) -> None:
        """Waits for the last deletion; raises what kept one from being done."""
        deletions, self._deletions = self._deletions, []
        for deletion in deletions:
            deletion.result()


def _like(copy: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy of a tensor with what else the tensor is."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


class Write(Protocol):
    """Files of one checkpoint on their way. Each rank has one, of its own files."""

    seconds: float
    """What it has taken beside the training."""
    entries: Entries
    """What this rank has written."""

    @property
    def is_under_way(self) -> bool:
        """Whether this rank has more to do for it."""

    @property
    def has_failed(self) -> bool:
        """Whether this rank could not do its part."""

    def failure(self) -> BaseException | None:
        """What kept this rank from writing its files, once they are written or cannot be."""

    def publish(self, entries: Entries) -> None:
        """Returns once the checkpoint is in its place, of the files of all ranks; raises what kept it from that.
        Master."""

    def end(self, others_s: float = OTHERS_S) -> bool:
        """Returns once nothing of it goes on, whether it is there: the master waits `others_s` longer than for its own
        files for those of ranks that may be gone. Asks no rank; raises what kept this one from its part."""


class ForegroundWrite:
    """Written as it is made, by the loop itself. Worker process."""

    seconds = 0.0
    is_under_way = has_failed = False

    def __init__(
        self, store: CheckpointStore, name: str, files: Mapping[str, Any], commit: Callable[[Entries], None]
    ) -> None:
        self.publish = commit
        self.entries: Entries = {}
        self._failure: Exception | None = None
        try:
            self.entries = store.write_files(name, files)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            self._failure = error

    def failure(self) -> BaseException | None:
        return self._failure

    def end(self, others_s: float = OTHERS_S) -> bool:
        return False


class BackgroundWrite:
    """Written in a thread, which calls no collective: each rank hands in as a file what it has written, and the
    master's commits once all have. Worker process."""

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        store: CheckpointStore,
        name: str,
        files: Mapping[str, Any],
        world: World,
        commit: Callable[[Entries], None],
    ) -> None:
        self._store, self._name, self._files, self._world, self._commit = store, name, files, world, commit
        self._folder, self._given_up = store.storage / store.staging(name), Event()
        self.seconds = 0.0
        self.entries: Entries = {}
        self._written = thread.submit(self._write)
        self._published = thread.submit(self._publish) if world.is_master else self._written

    @property
    def is_under_way(self) -> bool:
        return not self._published.done()

    @property
    def has_failed(self) -> bool:
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
            self._folder.write(_handed_in(self._world.rank), json.dumps(self.entries))
        self.seconds = perf_counter() - began
        return True

    def _publish(self) -> bool:
        if not self.entries:
            return False
        entries = dict(self.entries)
        began, others = perf_counter(), [_handed_in(rank) for rank in range(1, self._world.world_size)]
        pause_s = 0.01
        while others and not {*others} <= {*self._folder.names()}:
            if self._given_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _ASKED_AGAIN_S)
        for handed_in in self._folder.each(self._folder.read, others):
            entries |= json.loads(handed_in)
        self._folder.each(self._folder.delete, others)
        self._commit(entries)
        self.seconds += perf_counter() - began
        return True


def _handed_in(rank: int) -> str:
    return f"rank-{rank:04d}.json"
