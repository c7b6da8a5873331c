"""Cost of reading the table of a large run: 1,024 ranks, 1,000 iterations each, 20 columns.

The rows are made by NumPy and written as ranks write them, Arrow streams of `flush` rows to a
batch, then read as they are while the run is alive and again from the compacted file; each reading
is a process of its own, whose peak memory is its own. The claim: a pandas table within 10 s,
`--by rank` within 3 s, and at most 4 GiB.

    python -m benchmarks.tables [ranks [iterations [flush]]]
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from benchmarks.timing import print_table
from orchestrator.column_names import SPANS
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.rows.file_format import make_stream
from orchestrator.disk.run_folder import RunFolder

READ = """
import re, sys
from time import perf_counter, process_time
from orchestrator.runs.result import open_run
run = open_run(sys.argv[1])
from orchestrator.tables import frames, summaries
started, worked = perf_counter(), process_time()
table = CALL
seconds, work = perf_counter() - started, process_time() - worked
size = table.memory_usage(deep=True).sum() / max(1, len(table))
peak = int(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(seconds, work, peak / 2**20, size, len(table))
"""
CALLS = {
    "the whole table, pandas": "run.stats",
    "three columns of an epoch": "run.load_stats(['rank', 'iteration', 'step_s'], 'epoch == 3')",
    "all columns of a rank": "run.load_stats(where='rank == 7')",
    "`--by rank`, a column": "run.summary('rank', ['step_s'])",
    "`--by rank`": "run.summary('rank')",
    "`--by span`": "run.summary('span')",
    "`hookyard stats`": "run.summary()",
}


def rows_of(rank: int, iterations: int) -> pa.Table:
    """The 20 columns of a rank's training: what names a row, the loss, ten times, memory."""
    numbers = np.random.default_rng(rank)
    spans = {name: numbers.gamma(4.0, 0.01, iterations) for name in SPANS}
    order = np.arange(1, iterations + 1)
    columns = {
        "rank": pa.repeat(rank, iterations),
        "node": pa.repeat(f"node-{rank // 8}", iterations),
        "attempt": pa.repeat(0, iterations),
        "phase": pa.repeat("train", iterations),
        "epoch": order // 100,
        "iteration": order,
        "step": order,
        "samples": order * 64,
        "loss": 1 / order,
        **spans,
        "step_s": np.sum(list(spans.values()), axis=0),
        "rss_bytes": pa.array(order * 4096, mask=order % 10 != 0),
    }
    return pa.table(columns)


def write(folder: RunFolder, ranks: int, iterations: int, flush: int) -> None:
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(Attempt(0))))
    for rank in range(ranks):
        rows = rows_of(rank, iterations)
        batches = b"".join(
            bytes(batch.serialize()) for batch in rows.to_batches(max_chunksize=flush)
        )
        folder.storage.write(
            f"stats/attempt=0/rank={rank}/rows-00000.arrow", make_stream(rows.schema, batches)
        )


def measure(path: str, call: str) -> tuple[float, float, float, float, int]:
    done = subprocess.run(
        [sys.executable, "-c", READ.replace("CALL", call), path],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, work, memory, size, rows = done.stdout.split()
    return float(seconds), float(work), float(memory), float(size), int(rows)


def main(ranks: int = 1024, iterations: int = 1000, flush: int = 512) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = create_run(Path(place), "large", "hooks: {}\n")
        write(folder, ranks, iterations, flush)
        times = {}
        for state in ("alive", "compacted"):
            if state == "compacted":
                started = perf_counter()
                compact(folder.storage, folder.read_attempts())
                seconds = perf_counter() - started
            for name, call in CALLS.items():
                times[name, state] = measure(str(folder), call)
        size = (Path(str(folder)) / "stats.parquet").stat().st_size / (ranks * iterations)
    rows = [
        (
            f"{name}, {state}",
            f"{took:.2f}",
            f"{work:.2f}",
            f"{memory:.2f}",
            f"{count:,}",
            f"{each:.0f}",
        )
        for (name, state), (took, work, memory, each, count) in times.items()
    ]
    rows.append(
        ("compacting", f"{seconds:.2f}", "", "", f"{ranks * iterations:,}", f"{size:.0f} on disk")
    )
    print_table(
        f"Reading {ranks:,} ranks x {iterations:,} iterations x 20 columns, {flush} rows to a flush",
        ["what", "s", "s of CPU", "peak GiB of the process", "rows made", "bytes per row"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
