"""Sharded tensors in a checkpoint: each rank writes its shards, and reads what it needs of all, whatever their number.

What a checkpoint's file would hold of a sharded tensor is a mark with its key; the shards are in `shards-0000.pt`, one
file for each rank, and `shards.pt` says which of a tensor lies where. Who writes and reads what is planned by
torch.distributed.checkpoint; its own files are pickles, which are not safe to load, so here they are the store's. Worker
process, and wherever a checkpoint is made whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_shards
from torch.futures import Future

from orchestrator.checkpoint.shard_placeholders import INDEX, file_of
from orchestrator.errors import CheckpointError


class Files(Protocol):
    """The files of checkpoints, as CheckpointStore keeps them."""

    def path(self, name: str) -> str: ...

    def load(self, name: str, file: str) -> Any: ...

    def write_files(self, name: str, files: Mapping[str, Any]) -> dict[str, dict[str, Any]]: ...


def write(store: Files, name: str, tensors: Mapping[str, DTensor], rank: int, group: Any) -> dict[str, dict[str, Any]]:
    """Writes this rank's shards into the unfinished checkpoint `name`; collective. Returns the manifest's entries for
    what this rank wrote; raises CheckpointError on every rank where one could not."""
    writer = _Writer(store, name, file_of(rank))
    with _told(f"the shards of {store.path(name)} cannot be written"):
        save(dict(tensors), storage_writer=writer, process_group=group)
    return writer.entries


def read(
    store: Files, name: str, keys: Iterable[str], mesh: DeviceMesh | None = None, group: Any = None
) -> dict[str, Tensor]:
    """Sharded tensors of a checkpoint by key: sharded over the ranks of a mesh, collective, or else whole on the CPU."""
    reader = _Reader(store, name)
    described = reader.read_metadata().state_dict_metadata
    tensors = {key: _empty(described[key], mesh) for key in keys}
    with warnings.catch_warnings(), _told(f"the shards of {store.path(name)} cannot be read"):
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(tensors, storage_reader=reader, process_group=group, no_dist=mesh is None)
    return tensors


def _empty(about: Any, mesh: DeviceMesh | None) -> Tensor:
    size, dtype = about.size, about.properties.dtype
    return torch.empty(size, dtype=dtype) if mesh is None else empty_shards(size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


@contextmanager
def _told(what: str) -> Iterator[None]:
    """torch's collected failures of ranks, which are no Exception, as an error of ours."""
    try:
        yield
    except CheckpointException as error:
        reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
        raise CheckpointError(f"{what}: {reasons}") from None


class _Writer(StorageWriter):
    """Writes the planned pieces of a rank into one file, and on the first rank the index of all."""

    def __init__(self, store: Files, name: str, file: str) -> None:
        self._store, self._name, self._file = store, name, file
        self.entries: dict[str, dict[str, Any]] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        # A shard is a view of a padded one, and all of what a view is of would be saved.
        tensors = (cast(Tensor, planner.resolve_data(item)) for item in plan.items)  # nothing else is ever planned
        pieces = [tensor.detach().cpu().clone() for tensor in tensors]
        self.entries |= self._store.write_files(self._name, {self._file: pieces})
        return _done([
            WriteResult(item.index, piece.nbytes, (self._file, number))
            for number, (item, piece) in enumerate(zip(plan.items, pieces, strict=True))
        ])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for of_rank in results for result in of_rank}
        index = {key: _description(key, about, places) for key, about in metadata.state_dict_metadata.items()}
        self.entries |= self._store.write_files(self._name, {INDEX: index})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _description(key: str, about: Any, places: Mapping[MetadataIndex, tuple[str, int]]) -> dict[str, Any]:
    """A tensor as plain data: its type and shape, and of each shard where it begins, its shape, file and place there."""
    pieces = [
        [list(chunk.offsets), list(chunk.sizes), *places[MetadataIndex(key, chunk.offsets)]]
        for chunk in about.chunks
    ]
    return {"dtype": about.properties.dtype, "shape": list(about.size), "pieces": pieces}


class _Reader(StorageReader):
    """Reads the pieces that were asked for, one file after another."""

    def __init__(self, store: Files, name: str) -> None:
        self._store, self._name = store, name
        self._places: dict[MetadataIndex, tuple[str, int]] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        for key, about in self._store.load(self._name, INDEX).items():
            chunks = []
            for offsets, sizes, file, number in about["pieces"]:
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                self._places[MetadataIndex(key, offsets)] = file, number
            tensors[key] = TensorStorageMetadata(TensorProperties(about["dtype"]), torch.Size(about["shape"]), chunks)
        return Metadata(tensors)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for file, items in groupby(sorted(plan.items, key=self._file), self._file):
            pieces = self._store.load(self._name, file)
            for item in items:
                piece = pieces[self._places[item.storage_index][1]]
                for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    piece = piece.narrow(dimension, offset, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(piece)
                planner.commit_tensor(item, target)
        return _done(None)

    def _file(self, item: ReadItem) -> str:
        return self._places[item.storage_index][0]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
