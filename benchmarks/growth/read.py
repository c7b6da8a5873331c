"""Questions about a run by its number of rows: `stats --by rank`, doctor, report and compare, each
in a process of its own.

The run has 256 ranks, which closed their files, as `rows` writes it, and its rows are compacted
before the first question. A question uses two processors of the machine at once. If its wall time
is not below its processor time, other processes were using the machine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.growth.law import print_growth
from benchmarks.growth.rows import write_run

READ = """
import re, sys
from time import perf_counter, process_time
from orchestrator.report import make_report
from orchestrator.runs.comparison import compare_runs
from orchestrator.runs.result import open_run
from orchestrator.doctor import diagnose
run = open_run(sys.argv[1])
run.hook_costs
started, worked = perf_counter(), process_time()
CALL
seconds, work = perf_counter() - started, process_time() - worked
print(seconds, work, int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) / 2**20)
"""
CALLS = {
    "by rank": "run.summary('rank')",
    "doctor": "diagnose(run.rows(), run.hook_costs)",
    "report": "make_report(run.folder)",
    "compare": "compare_runs([run, run])",
}


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (1_000_000, 3_000_000, 10_000_000)
    costs: dict[str, list[float]] = {
        f"{unit}, {name}": [] for name in CALLS for unit in ("seconds", "s of CPU", "GiB")
    }
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=os.environ.get("GROWTH_FOLDER")) as place:
            folder = Path(place, "large")
            write_run(folder, size, close=True)
            for name, call in CALLS.items():
                done = subprocess.run(
                    [sys.executable, "-c", READ.replace("CALL", call), str(folder)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for unit, value in zip(
                    ("seconds", "s of CPU", "GiB"), map(float, done.stdout.split()), strict=True
                ):
                    costs[f"{unit}, {name}"].append(value)
    print_growth("rows of a run that is asked", "rows", sizes, costs)
