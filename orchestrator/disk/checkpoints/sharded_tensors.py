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
            files[INDEX][key] = _describe(tensor, number, world_size)
    return files


class _Copy(NamedTuple):
    """A copy of rows from a shard to this rank's part of a tensor."""

    number: int
    """Number of the shard in its file."""
    part: Tensor
    offset: int
    """First row of the shard, counted from the part's first row; negative if it is before it."""

    def execute(self, shards: Sequence[Tensor]) -> None:
        """Copy the rows that the shard and the part have in common."""
        rows = shards[self.number][max(0, -self.offset) : len(self.part) - self.offset]
        start = max(0, self.offset)
        self.part[start : start + len(rows)] = rows


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
    tensors = {key: _empty(index[key], mesh) for key in keys}
    copies: dict[str, list[_Copy]] = {}
    for key, tensor in tensors.items():
        for file, copy in _list_copies(tensor, index[key]["pieces"], mesh):
            copies.setdefault(file, []).append(copy)
    for file in sorted(copies):
        shards = load(file)
        for copy in copies[file]:
            copy.execute(shards)
    return tensors


def _list_copies(
    tensor: Tensor, pieces: Iterable[Any], mesh: DeviceMesh | None
) -> Iterator[tuple[str, _Copy]]:
    """Yield the file of each shard that this rank needs of a tensor, and what to copy from it."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    start = 0
    if mesh is not None:
        start = _rows(len(tensor), mesh.get_local_rank(), mesh.size()).start
    for (first, *_), (rows, *_), file, number in pieces:
        if first < start + len(part) and start < first + rows:
            yield file, _Copy(number, part, first - start)


def _describe(tensor: DTensor, number: int, world_size: int) -> dict[str, Any]:
    """Return a tensor's dtype and shape, and each shard's start, shape, file and number in the
    file."""
    pieces = []
    for rank in range(world_size):
        shard = _rows(len(tensor), rank, world_size)
        if shard:
            start = [shard.start, *[0] * (tensor.ndim - 1)]
            shape = [len(shard), *tensor.shape[1:]]
            pieces.append([start, shape, shard_file(rank), number])
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "pieces": pieces}


def _rows(length: int, rank: int, world_size: int) -> range:
    """Return a rank's rows of the first dimension."""
    share = -(-length // world_size)
    return range(length)[rank * share : (rank + 1) * share]


def _empty(described: Mapping[str, Any], mesh: DeviceMesh | None) -> Tensor:
    size = described["shape"]
    dtype = described["dtype"]
    if mesh is None:
        return torch.empty(size, dtype=dtype)
    return empty_shards(size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
