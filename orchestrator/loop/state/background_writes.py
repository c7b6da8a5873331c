"""Writing of a checkpoint's files in the background, by a thread that writes a copy."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError
from orchestrator.loop.world import World
from orchestrator.storage.stored_data import format_json, parse_json

Entries = Mapping[str, dict[str, Any]]
"""Entries of a manifest, by the names of the files."""

_POLL_S = 0.5
"""Maximum pause between two checks of the master for the files of other ranks."""
PEER_TIMEOUT_S = 10.0
"""Seconds that the master waits, after its own files, for the files of ranks that may have died."""


@dataclass(frozen=True)
class PreparedCheckpoint:
    """A checkpoint that this rank is about to write."""

    name: str
    files: Mapping[str, Any]
    """Contents of this rank's files."""
    commit: Callable[[Entries], None]
    """Function that publishes the checkpoint, once all ranks have written the files of these
    entries."""
    has_shards: bool
    """True if each rank writes shards of tensors."""


class Background:
    """Thread of a worker that writes copies of checkpoints during training, and deletes old ones.

    Host memory for the copies is reused from one checkpoint to the next; it is pinned if they come
    from a GPU.
    Source: torch.distributed.checkpoint.async_save.
    """

    def __init__(self, world: World, store: CheckpointStore) -> None:
        # Its import takes half a second.
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.world = world
        self.store = store
        on_gpu = world.device.type == "cuda"
        options = StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=on_gpu,
        )
        self._new_stager = partial(DefaultStager, options)
        self._stager = self._new_stager()
        # A reference cycle in the stager would keep all copies.
        finalize(self, self._stager.close)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._deletions: list[Future[None]] = []
        store.index.postpone_deletions(self._submit_deletion)

    def copy(self, tree: Any) -> Any:
        """Return a finished copy on the CPU, in which tensors share memory as they do in `tree`."""
        tensors: dict[Any, Tensor] = {
            id(tensor): tensor for tensor in placeholders.tensors_in(tree)
        }
        # The stager gets only the tensors, because it changes parameters, and containers other than
        # dicts.
        plain_tensors = {
            key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in tensors.items()
        }
        try:
            copies: Any = self._stager.stage(plain_tensors)
        except torch.AcceleratorError:
            raise
        except (RuntimeError, AssertionError) as error:
            raise CheckpointError(
                f"the checkpoint cannot be copied to host memory: {error}; set hooks.checkpoint.background: false"
            ) from error
        if torch.__version__ < "2.13":
            # An older stager closes itself after a copy.
            self._stager = self._new_stager()
        if self.world.device.type == "cuda":
            # The stager synchronizes only the current device.
            torch.cuda.synchronize(self.world.device)
        return deepcopy(tree, {key: _like(copies[key], tensor) for key, tensor in tensors.items()})

    def _submit_deletion(self, delete: Callable[[], None]) -> None:
        self._deletions.append(self.thread.submit(delete))

    def finish_deletions(self) -> None:
        """Wait for all deletions; raises the first error."""
        deletions = self._deletions
        self._deletions = []
        for deletion in deletions:
            deletion.result()


def _like(copy: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy with the tensor's class and `requires_grad`."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


class BackgroundWrite:
    """Write of this rank's files of one checkpoint in a thread, which calls no collective.

    Each rank writes a file with its manifest entries. The master's thread commits once all of them
    exist.
    """

    def __init__(
        self,
        background: Background,
        checkpoint: PreparedCheckpoint,
    ) -> None:
        self.name = checkpoint.name
        self._files = checkpoint.files
        self._commit = checkpoint.commit
        self._world = background.world
        self._store = background.store
        self._folder = self._store.storage / self._store.get_staging_folder(self.name)
        self._given_up = Event()
        self.seconds = 0.0
        """Seconds that the write has taken."""
        self._entries: Entries = {}
        """Files that this rank has written."""
        self._written = background.thread.submit(self._write)
        self._published = self._written
        if self._world.is_master:
            self._published = background.thread.submit(self._publish)

    @property
    def is_writing(self) -> bool:
        return not self._published.done()

    @property
    def has_failed(self) -> bool:
        return any(part.done() and part.exception() for part in (self._written, self._published))

    def wait(self) -> BaseException | None:
        """Wait until this rank's write succeeds or fails; return the error if it fails."""
        return self._written.exception()

    def end(self, peer_timeout_s: float | None = PEER_TIMEOUT_S) -> bool:
        """Wait until nothing of the checkpoint is being written; return whether it is committed.

        The master waits up to `peer_timeout_s` longer for files of ranks that may be dead; None if
        all ranks have written their files. No communication. Raises this rank's own error.
        """
        wait([self._written])
        wait([self._published], timeout=peer_timeout_s)
        self._given_up.set()
        self._written.result()
        return self._published.result()

    def _write(self) -> bool:
        start = perf_counter()
        self._entries = self._store.write_files(self.name, self._files)
        self._files = {}
        if not self._world.is_master:
            self._folder.write(_entries_file(self._world.rank), format_json(self._entries))
        self.seconds = perf_counter() - start
        return True

    def _publish(self) -> bool:
        """Commit once all ranks have written their files; return whether they have."""
        if not self._entries:
            return False
        start = perf_counter()
        files = [_entries_file(rank) for rank in range(1, self._world.world_size)]
        pause_s = 0.01
        while files and not set(files).issubset(self._folder.names()):
            if self._given_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, _POLL_S)

        entries = dict(self._entries)
        for text in self._folder.map(self._folder.read, files):
            entries |= parse_json(text)
        self._folder.map(self._folder.delete, files)
        self._commit(entries)
        self.seconds += perf_counter() - start
        return True


def _entries_file(rank: int) -> str:
    return f"rank-{rank:04d}.json"
