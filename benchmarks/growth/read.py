"""What is asked of a run, by how many rows it has: `stats --by rank`, doctor, report and compare, each in a process of its own.

Rows are those of 256 ranks, 20 columns, in the files that ranks leave: segments of 65,536 rows. Where fewer seconds of the processor
than of the clock are told, others were at work on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth.law import print_growth
from benchmarks.tables import rows_of
from orchestrator.records.run_folder import RunFolder
from orchestrator.stats.checksums import write_parquet

RANKS, SEGMENT = 256, 2**16
READ = """
import re, sys
from time import perf_counter, process_time
from orchestrator.report.run import run_page
from orchestrator.runs.comparison import compare_runs
from orchestrator.runs.result import open_run
from orchestrator.stats.insight import diagnose
run = open_run(sys.argv[1])
started, worked = perf_counter(), process_time()
CALL
seconds, work = perf_counter() - started, process_time() - worked
print(seconds, work, int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) / 2**20)
"""
CALLS = {
    "by rank": "run.summary('rank')",
    "doctor": "diagnose(run.rows(), run.hook_costs)",
    "report": "run_page(run, 'now')",
    "compare": "compare_runs([run, run])",
}


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (300_000, 1_000_000, 3_000_000)
    costs: dict[str, list[float]] = {f"{unit}, {name}": [] for name in CALLS for unit in ("seconds", "s of CPU", "GiB")}
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder.create(Path(place), "large", "hooks: {}\n")
            write(folder, size // RANKS)
            for name, call in CALLS.items():
                done = subprocess.run([sys.executable, "-c", READ.replace("CALL", call), str(folder)], capture_output=True, text=True, check=True)
                for unit, value in zip(("seconds", "s of CPU", "GiB"), map(float, done.stdout.split()), strict=True):
                    costs[f"{unit}, {name}"].append(value)
    print_growth("rows of a run that is asked", "rows", sizes, costs)


def write(folder: RunFolder, iterations: int) -> None:
    """A finished run, whose ranks wrote so many iterations each."""
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps({"attempt": 0, "position": None, "world_size": RANKS}))
    for rank in range(RANKS):
        rows = rows_of(rank, iterations).drop_columns(["rank", "attempt"])
        for number, first in enumerate(range(0, iterations, SEGMENT)):
            with folder.storage.create(f"stats/attempt=0/rank={rank}/rows-{number:05d}.parquet") as file:
                write_parquet([rows.slice(first, SEGMENT)], file)
    folder.end("finished")
