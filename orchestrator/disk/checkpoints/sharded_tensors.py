"""Sharded tensors in a checkpoint: each rank writes its shards, and any number of ranks can read
them.

Tensors are sharded along their first dimension, as `torch.chunk` does. Each rank writes a list of
shards to its `shards-0000.pt`, and `shards.pt` describes in which file each shard of a tensor is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor import empty as empty_shards

from orchestrator.disk.checkpoints.placeholders import INDEX, shard_file


def make_shard_files(tensors: Mapping[str, DTensor], rank: int, world_size: int) -> dict[str, Any]:
    """Return this rank's shards by file, as copies on the CPU; collective."""
    local = [tensor.redistribute(placements=[Shard(0)]).to_local() for tensor in tensors.values()]
    # Copy: a shard is a view of a padded tensor, which torch.save would write completely.
    files: dict[str, Any] = {
        shard_file(rank): [shard.detach().to("cpu", copy=True) for shard in local]
    }
    if rank == 0:
        files[INDEX] = {}
        for number, (key, tensor) in enumerate(tensors.items()):
            files[INDEX][key] = _make_entry(tensor, number, world_size)
    return files


class _StoredShard(NamedTuple):
    """Where a shard is in its tensor, and where it is stored, as the index has it."""

    start: Sequence[int]
    shape: Sequence[int]
    file: str
    number: int
    """Number of the shard in its file."""


class _Copy(NamedTuple):
    """Rows of a shard that this rank's part of a tensor needs."""

    shard: _StoredShard
    part: Tensor
    offset: int
    """First row of the shard, counted from the part's first row; negative if it is before it."""


def read_tensors(
    load: Callable[[str], Any], keys: Iterable[str], mesh: DeviceMesh | None = None
) -> dict[str, Tensor]:
    """Return sharded tensors by key: this rank's shards on a mesh, or full tensors on the CPU.

    Args:
        load: Reads a file of the checkpoint.
        keys: Keys of the tensors.
        mesh: Ranks that share the tensors; None for full tensors.
    """
    index = load(INDEX)
    tensors = {key: _make_empty_tensor(index[key], mesh) for key in keys}
    copies: dict[str, list[_Copy]] = {}
    for key, tensor in tensors.items():
        for copy in _list_copies(tensor, index[key], mesh):
            copies.setdefault(copy.shard.file, []).append(copy)

    for file in sorted(copies):
        shards = load(file)
        for copy in copies[file]:
            _copy_rows(shards[copy.shard.number], copy.part, copy.offset)
    return tensors


def _make_empty_tensor(entry: Mapping[str, Any], mesh: DeviceMesh | None) -> Tensor:
    shape = entry["shape"]
    dtype = entry["dtype"]
    if mesh is None:
        return torch.empty(shape, dtype=dtype)
    return empty_shards(shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])


def _list_copies(
    tensor: Tensor, entry: Mapping[str, Any], mesh: DeviceMesh | None
) -> Iterator[_Copy]:
    """Yield what this rank needs of the shards of a tensor, whose entry in the index is given."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    start = 0
    if mesh is not None:
        start = _find_rows(len(tensor), mesh.get_local_rank(), mesh.size()).start
    end = start + len(part)

    for values in entry["shards"]:
        shard = _StoredShard(*values)
        first = shard.start[0]
        if first < end and start < first + shard.shape[0]:
            yield _Copy(shard, part, first - start)


def _copy_rows(shard: Tensor, part: Tensor, offset: int) -> None:
    """Copy the rows that a shard and a part of a tensor have in common to the part."""
    rows = shard[max(0, -offset) : len(part) - offset]
    start = max(0, offset)
    part[start : start + len(rows)] = rows


def _make_entry(tensor: DTensor, number: int, world_size: int) -> dict[str, Any]:
    """Return the entry of a tensor in the index; `number` is that of its shards in their files."""
    shards = []
    for rank in range(world_size):
        rows = _find_rows(len(tensor), rank, world_size)
        if rows:
            start = [rows.start, *[0] * (tensor.ndim - 1)]
            shape = [len(rows), *tensor.shape[1:]]
            shard = _StoredShard(start, shape, shard_file(rank), number)
            shards.append([*shard])
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "shards": shards}


def _find_rows(length: int, rank: int, world_size: int) -> range:
    """Return a rank's rows of the first dimension."""
    share = -(-length // world_size)
    return range(length)[rank * share : (rank + 1) * share]
