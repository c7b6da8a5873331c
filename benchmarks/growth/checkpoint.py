"""A checkpoint by its size in MiB, in two files of two ranks: what writing it takes each, and what
of it is read back, in a folder and on S3 (without a delay: its requests are counted)."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter

import torch

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from hooks.position import Position
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.storage import Storage

DETAILS = {"world_size": 2, "metrics": {}, "main_metric": "", "evaluations": {"": ""}}


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (32, 64, 128)
    read: list[int] = []
    read_chunks = Storage.read_chunks

    def counted(self: Storage, name: str) -> Iterator[bytes]:
        for piece in read_chunks(self, name):
            read.append(len(piece))
            yield piece

    Storage.read_chunks = counted
    for place in ("a folder", "S3"):
        costs: dict[str, list[float]] = {
            "s a rank": [],
            "s of rank 0 beside": [],
            "MiB read back": [],
            "s to resume, by each of 2": [],
            "requests": [],
        }
        for size in sizes:
            with (
                tempfile.TemporaryDirectory() as folder,
                slow_s3(delay_s=0) if place == "S3" else nullcontext(lambda: 0) as requests,
            ):
                store = CheckpointStore(
                    Storage("s3://bucket/checkpoints" if place == "S3" else folder)
                )
                content = torch.zeros(size // 2 * 2**18)
                name = store.choose_name("epoch-0001")
                read.clear()
                requests()
                began = perf_counter()
                entries = store.write_files(name, {"rank-0000.pt": content})
                costs["s a rank"].append(perf_counter() - began)
                entries |= store.write_files(name, {"rank-0001.pt": content})
                began = perf_counter()
                store.commit(name, entries, Position(), DETAILS)
                costs["s of rank 0 beside"].append(perf_counter() - began)
                costs["requests"].append(float(requests()))
                costs["MiB read back"].append(sum(read) / 2**20)
                began = perf_counter()
                assert store.find_latest().name == name
                costs["s to resume, by each of 2"].append((perf_counter() - began) / 2)
        print_growth(f"a checkpoint in {place}", "MiB", sizes, costs)
    Storage.read_chunks = read_chunks
