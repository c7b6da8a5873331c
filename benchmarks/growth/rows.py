"""Cost of the rows of a run of 256 ranks: on disk during the run, at its end, and when they are
read.

Two ranks record as ranks do, five rows to a flush, which is what a run at five steps a second does;
the others have copies of their rows. A run ends in two ways: its ranks closed their files, or all
were killed before they had rewritten their last streams. A column is a number of rows, 100,000,000
for the largest. Each piece of work has its own process, whose processor time and peak memory are
measured.

    python -m benchmarks.growth rows [rows ...]
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.growth.law import print_growth
from orchestrator.disk.attempts import Attempt, rank_folder
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.loop.spans.columns import SPAN_COLUMNS
from orchestrator.loop.step.columns import make_columns
from orchestrator.storage import Storage

RANKS, REAL = 256, 2
FLUSH = 5
WORK = """
import re, sys
from time import process_time
from orchestrator.runs.result import open_run
from orchestrator.disk.rows.compaction import compact
run = open_run(sys.argv[1])
storage, attempts = run.folder.storage, run.folder.read_attempts()
from orchestrator.disk.rows import reader, usage
from orchestrator.tables import frames, query, summaries
started = process_time()
CALL
seconds = process_time() - started
print(seconds, int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""
COMPACT = "compact(storage, attempts)"
READ = {
    "a rank, three columns": "run.load_stats(['iteration', 'step_s', 'loss'], 'rank == 7')",
    "`stats --by hook`": "run.hook_costs",
}


def record(run: Storage, rank: int, rows: int, close: bool) -> tuple[float, float]:
    """Records as a loop on the CPU does; returns the seconds, and the most bytes a row took on disk
    once there were 10,000."""
    folder = rank_folder(0, rank)
    recorder = Recorder(
        run,
        folder,
        {"rank": rank, "node": f"node-{rank // 8}", "attempt": 0},
        flush_rows=FLUSH,
        flush_s=1e9,
    )
    spans = np.random.default_rng(rank).gamma(4.0, 0.0025, (5000, 18))
    ended, largest, started = 250_000.0, 0.0, process_time()
    for iteration in range(1, rows + 1):
        if iteration % 20_000 == 1:
            recorder.begin(
                {"phase": "train", "epoch": iteration // 20_000},
                make_columns(("loss", "lr"), SPAN_COLUMNS),
            )
        last, (*marks, ended) = (
            ended,
            [*accumulate((spans[iteration % 5000] * random.random()).tolist(), initial=ended)][1:],
        )
        memory = {"rss_bytes": 2**31 + iteration} if iteration % 10 == 1 else None
        place = iteration, iteration, 32 * iteration, 32
        recorder.append(memory, (*place, random.random(), 0.1, 0.0, 0.0, last, *marks, ended))
        if iteration % 18_000 == 0:
            recorder.append_costs(
                [
                    {
                        "iteration": iteration,
                        "hook": f"hook_{n}",
                        "event": "on_step",
                        "calls": 18_000,
                        "seconds": 1.0,
                    }
                    for n in range(40)
                ]
            )
            recorder.sync()
        if iteration % 1000 == 0 and iteration >= min(rows, 10_000) // 1000 * 1000:
            largest = max(
                largest, sum(file.size_bytes for file in run.tree(folder).values()) / iteration
            )
    recorder.sync()
    if close:
        recorder.close()
    return process_time() - started, largest


def write_run(folder: Path, rows: int, close: bool) -> tuple[float, float]:
    """Write a run of 256 ranks with a number of rows; return microseconds per recorded row, and
    bytes per row on disk."""
    storage = Storage(folder)
    started = {
        "name": folder.name,
        "status": "finished" if close else "running",
        "started": "2026-01-01T00:00:00Z",
        "ended": "2026-01-08T00:00:00Z",
    }
    storage.write("run.json", json.dumps(started))
    storage.write("experiment.yaml", "epochs: 1\n")
    storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(Attempt(0))))
    # In processes of their own, which may end without closing.
    command = [sys.executable, "-m", "benchmarks.growth.rows", str(folder)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(rows // RANKS), str(int(close))], stdout=subprocess.PIPE
        )
        for rank in range(REAL)
    ]
    results = [json.loads(rank.communicate()[0]) for rank in ranks]
    for rank in range(REAL, RANKS):
        for file in (folder / rank_folder(0, rank % REAL)).iterdir():
            storage.write(f"{rank_folder(0, rank)}/{file.name}", file.read_bytes())
    return sum(seconds for seconds, _ in results) / REAL / (rows // RANKS) * 1e6, max(
        size for _, size in results
    )


def measured(folder: Path, call: str) -> tuple[float, float]:
    """Return seconds, and the process's peak in bytes above that of an idle process."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", WORK.replace("CALL", work), str(folder)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for work in (call, "")
    ]
    (seconds, peak), (_, idle) = ([*map(float, output.split())] for output in outputs)
    return seconds, peak - idle


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (1_000_000, 3_000_000, 10_000_000)
    costs: dict[str, list[float]] = {}

    def note(**outputs: float) -> None:
        for name, value in outputs.items():
            costs.setdefault(name, []).append(value)

    for rows in sizes:
        with tempfile.TemporaryDirectory(dir=os.environ.get("GROWTH_FOLDER")) as around:
            for close in (False, True):
                folder = Path(around, "closed" if close else "killed")
                recording, on_disk = write_run(folder, rows, close)
                how = "closed" if close else "killed"
                seconds, peak = measured(folder, COMPACT)
                note(
                    **{
                        f"its end, ranks {how}: s": seconds,
                        f"its end, ranks {how}: us a row": seconds / rows * 1e6,
                        f"its end, ranks {how}: peak MiB": peak / 2**20,
                    }
                )
            note(
                **{
                    "recording: us a row": recording,
                    "bytes a row on disk from the 10,000th of a rank on": on_disk,
                }
            )
            for name, call in READ.items():
                seconds, peak = measured(folder, call)
                note(**{f"{name}: s": seconds, f"{name}: peak MiB": peak / 2**20})
    print_growth(f"Rows of {RANKS} ranks, {FLUSH} to a flush", "rows", sizes, costs)


if __name__ == "__main__":
    run, rank, rows, close = sys.argv[1], *map(int, sys.argv[2:])
    print(json.dumps(record(Storage(run), rank, rows, bool(close))), flush=True)
    os._exit(0)
