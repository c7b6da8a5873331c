"""Cost of the page of a large run (1,024 ranks, 1,000 iterations each, 20 columns), and of a sweep
of 1,000 trials.

The run is the one of `benchmarks.tables`. Each page is made by `hookyard report` in a process of
its own, then opened in headless Chromium beside an empty page, in turns; opening ends with the
second frame that is painted after loading. A run's findings, which are part of its page, are also
made by themselves, from a table that is in memory. The claims: at most 10 MB, of which plotly.js is
4.8, and open within 2 s; findings and page within 10 s.

    python -m benchmarks.report [ranks [iterations [trials [rounds]]]]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.tables import write
from benchmarks.timing import print_table
from orchestrator.disk.metadata import LaunchMetadata, SweepMetadata, TrialSettings
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.compaction import compact
from orchestrator.disk.run_folder import RunFolder
from tests.browser import CHROMIUM, inspect_pages

MAKE = """
import re, sys
from time import perf_counter
from orchestrator.report import make_report
from orchestrator.disk.run_folder import RunFolder
started = perf_counter()
page = make_report(RunFolder.open(sys.argv[1]))
seconds = perf_counter() - started
open(sys.argv[2], "w").write(page)
print(seconds, int(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) / 2**20)
"""
DOCTOR = """
import sys
from time import perf_counter
from orchestrator.disk.run_folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.doctor import diagnose
run = Run(RunFolder.open(sys.argv[1]))
stats, costs = run.stats, run.hook_costs
started = perf_counter()
diagnose(stats, costs)
print(perf_counter() - started)
"""
REPORTS = 30
"""Of each trial."""


def large_run(place: Path, ranks: int, iterations: int) -> RunFolder:
    folder = create_run(place, "large", "hooks: {}\n")
    write(folder, ranks, iterations, flush=512)
    compact(folder.storage, folder.read_attempts())
    folder.run_file.end("finished")
    return folder


def large_sweep(place: Path, trials: int) -> RunFolder:
    """A sweep of trials that reported and recorded no rows."""
    draw = np.random.default_rng(0)
    folder = create_run(
        place,
        "sweep",
        "sweep: {space: {optimizer.lr: {loguniform: [0.001, 1]}}}\n",
        LaunchMetadata(sweep=SweepMetadata([("val/accuracy", "max")], trials)),
    )
    for number in range(trials):
        rate, width = float(10 ** draw.uniform(-3, 0)), int(draw.choice([16, 32, 64]))
        own = TrialSettings(values={"optimizer.lr": rate, "task_args.width": width})
        trial = create_run(
            f"{folder}/trials",
            f"trial-{number:04d}",
            "hooks: {}\n",
            LaunchMetadata(trial_settings=own),
        )
        trial.begin_attempt()
        reached = np.maximum.accumulate(draw.random(REPORTS)) * rate
        lines = [
            {
                "attempt": 0,
                "epoch": place,
                "step": place + 1,
                "iteration": place + 1,
                "val/accuracy": value,
                "val/loss": 1 - value,
            }
            for place, value in enumerate(reached.tolist())
        ]
        trial.storage.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        trial.run_file.end("finished")
    return folder


def make_page(folder: RunFolder, page: Path) -> tuple[float, float]:
    """Seconds to make a page, and the GiB its process held at most."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE, str(folder), str(page)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def diagnosed(folder: RunFolder) -> float:
    """Seconds to make a run's findings."""
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, str(folder)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main(ranks: int = 1024, iterations: int = 1000, trials: int = 1000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        large = large_run(place, ranks, iterations)
        doctor_s = diagnosed(large)
        folders = {
            f"{ranks:,} ranks x {iterations:,} iterations": large,
            f"{trials:,} trials": large_sweep(place, trials),
        }
        empty = place / "empty.html"
        empty.write_text("<!DOCTYPE html><title>empty</title>")
        pages = {
            "an empty page": empty,
            **{what: place / f"{folder.name}.html" for what, folder in folders.items()},
        }
        costs = {what: make_page(folder, pages[what]) for what, folder in folders.items()}
        opened = opening_ms(pages, rounds)
        rows = []
        for what, page in pages.items():
            seconds, memory = costs.get(what, (0.0, 0.0))
            times = opened[what]
            shown = (f"{median(times):.0f}", f"{max(times):.0f}") if times else ("no Chromium", "")
            rows.append(
                (
                    what,
                    f"{seconds:.1f}" if seconds else "",
                    f"{memory:.2f}" if memory else "",
                    f"{page.stat().st_size / 1e6:.2f}",
                    *shown,
                )
            )
    print_table(
        "Making and opening a page",
        [
            "page",
            "s to make",
            "peak GiB of the process",
            "MB",
            "ms to open",
            "longest of the rounds",
        ],
        rows,
    )
    print(f"\nThe findings on that run by themselves: {doctor_s:.1f} s.")


def opening_ms(pages: dict[str, Path], rounds: int) -> dict[str, list[float]]:
    """The milliseconds each page took to open, round by round; a first round is not counted."""
    if CHROMIUM is None:
        return {what: [] for what in pages}
    answers, _ = inspect_pages(
        [(page, 1280) for _ in range(rounds + 1) for page in pages.values()], "opened_ms"
    )
    return {what: answers[len(pages) + place :: len(pages)] for place, what in enumerate(pages)}


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
