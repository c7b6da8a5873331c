"""Lines appended to `metrics.jsonl` on S3, each of 300 bytes, by their number: requests and bytes per line, and the
cost of reading all of them."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from orchestrator.storage import Storage

LINE = "x" * 299 + "\n"


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (100, 300, 1000)
    sent: list[int] = []
    send = Storage.write

    def counted(self: Storage, name: str, data: bytes | str) -> None:
        sent.append(len(data))
        send(self, name, data)

    Storage.write = counted
    costs: dict[str, list[float]] = {
        "requests to add": [],
        "bytes sent": [],
        "requests to read": [],
        "seconds to read": [],
    }
    for lines in sizes:
        with slow_s3(delay_s=0.001) as requests:
            storage = Storage("s3://bucket/run")
            sent.clear()
            requests()
            for _ in range(lines):
                storage.append("metrics.jsonl", LINE)
            costs["requests to add"].append(float(requests()))
            costs["bytes sent"].append(float(sum(sent)))
            began = perf_counter()
            assert len(storage.read_appended("metrics.jsonl")) == lines * len(LINE)
            costs["seconds to read"].append(perf_counter() - began)
            costs["requests to read"].append(float(requests()))
    Storage.write = send
    print_growth("lines of metrics.jsonl on S3", "lines", sizes, costs)
