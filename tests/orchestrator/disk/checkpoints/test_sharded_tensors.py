"""Sharded tensors are read whole, or by another number of ranks. The reference is `torch.chunk`."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from orchestrator.disk.checkpoints.placeholders import encode
from orchestrator.disk.checkpoints.sharded_tensors import make_shard_files, read_tensors
from orchestrator.errors import RunError
from tests.ranks import on_ranks

LENGTHS = {"five": 5, "one": 1, "none": 0}


def make_tensor(length: int) -> Tensor:
    return torch.arange(2.0 * length).reshape(length, 2)


def make_files(saved_by: int) -> dict[str, Any]:
    """The files of ranks that save a tensor of each length, written by hand."""
    files: dict[str, Any] = {f"shards-{rank:04d}.pt": [] for rank in range(saved_by)}
    index = {}
    for number, (key, length) in enumerate(LENGTHS.items()):
        chunks = make_tensor(length).chunk(saved_by)
        shards = []
        first = 0
        for rank in range(saved_by):
            chunk = chunks[rank] if rank < len(chunks) else torch.empty(0, 2)
            file = f"shards-{rank:04d}.pt"
            files[file].append(chunk)
            if len(chunk):
                shards.append([[first, 0], [len(chunk), 2], file, number])
            first += len(chunk)
        index[key] = {"dtype": torch.float32, "shape": [length, 2], "shards": shards}
    return {**files, "shards.pt": index}


def make_mesh(world_size: int) -> DeviceMesh:
    dist.barrier()  # a rank that ends before all are connected would fail the others
    return init_device_mesh("cpu", (world_size,))


def save_on_rank(rank: int, world_size: int) -> dict[str, Any]:
    mesh = make_mesh(world_size)
    tensors = {key: distribute_tensor(make_tensor(n), mesh) for key, n in LENGTHS.items()}
    files = make_shard_files(tensors, rank, world_size)
    return to_lists(files)


def load_on_rank(rank: int, world_size: int, saved_by: int) -> dict[str, Any]:
    mesh = make_mesh(world_size)
    tensors = read_tensors(make_files(saved_by).__getitem__, LENGTHS, mesh)
    return {key: tensor.to_local().tolist() for key, tensor in tensors.items()}


def encode_number(rank: int, world_size: int) -> str:
    mesh = make_mesh(world_size)
    number = DTensor.from_local(torch.tensor(1.0), mesh, [Replicate()])
    with pytest.raises(RunError) as caught:
        encode({"norm": number}, {})
    return str(caught.value)


def to_lists(files: dict[str, Any]) -> dict[str, Any]:
    lists = {}
    for file, content in files.items():
        lists[file] = content
        if isinstance(content, list):
            lists[file] = [tensor.tolist() for tensor in content]
    return lists


@pytest.mark.parametrize("saved_by", [1, 3, 4])
def test_shards_are_joined(saved_by: int) -> None:
    tensors = read_tensors(make_files(saved_by).__getitem__, LENGTHS)
    for key, length in LENGTHS.items():
        assert torch.equal(tensors[key], make_tensor(length))


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(3, 2), (2, 3), (4, 2)])
def test_other_number_of_ranks_reads_shards(saved_by: int, loaded_by: int) -> None:
    by_rank = on_ranks(load_on_rank, loaded_by, saved_by)
    for key, length in LENGTHS.items():
        chunks = [chunk.tolist() for chunk in make_tensor(length).chunk(loaded_by)]
        parts = [parts[key] for parts in by_rank]
        assert [part for part in parts if part] == [chunk for chunk in chunks if chunk]


def test_only_files_with_needed_rows_are_loaded() -> None:
    files = make_files(4)
    loaded = []

    def load(file: str) -> Any:
        loaded.append(file)
        return files[file]

    read_tensors(load, ["one"])
    assert loaded == ["shards.pt", "shards-0000.pt"]


def test_ranks_write_their_shards_and_the_first_an_index() -> None:
    files: dict[str, Any] = {}
    for own in on_ranks(save_on_rank, 3):
        files |= own
    assert files == to_lists(make_files(3))


def test_sharded_number_is_refused_by_name() -> None:
    for message in on_ranks(encode_number, 2):
        assert "cannot hold norm, a sharded tensor without dimensions" in message
        assert "full_tensor()" in message
