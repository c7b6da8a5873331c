"""Cost of a checkpoint on S3 by the number of ranks, each with a small file.

Counts the requests of rank 0 and of every other rank. Three checkpoints are kept.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from hooks.position import Position
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.storage import Storage


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (8, 64, 512)
    costs: dict[str, list[float]] = {"requests of rank 0": [], "of each other rank": []}
    for ranks in sizes:
        with slow_s3(delay_s=0.001) as requests:
            store, kept = CheckpointStore(Storage("s3://bucket/checkpoints")), list[str]()
            for number in range(1, 5):
                requests()
                name = store.choose_name(f"epoch-{number:04d}")
                store.discard_unfinished(name)
                entries = store.write_files(name, {"rank-0000.pt": 0})
                before = requests()
                for written in store.storage.map(
                    partial(_write_rank_file, store, name), range(1, ranks)
                ):
                    entries |= written
                others = requests()
                store.commit(
                    name, entries, Position(step=number), {"world_size": ranks, "metrics": {}}
                )
                kept = [*kept, name][-3:]
                store.retain("run", kept)
                after = requests()
            costs["requests of rank 0"].append(float(before + after))
            costs["of each other rank"].append(others / (ranks - 1))
    print_growth("one checkpoint on S3", "ranks", sizes, costs)


def _write_rank_file(store: CheckpointStore, name: str, rank: int) -> dict[str, dict[str, Any]]:
    return store.write_files(name, {f"rank-{rank:04d}.pt": rank})
