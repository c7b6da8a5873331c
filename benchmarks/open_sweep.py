"""Time to read a large sweep: the table of a thousand trials, and one trial's rows out of ten
million.

The sweep is made up: every trial has reports, attempts and values of its own, and 10,000 rows of 19
columns in the file that a finished trial leaves, which all trials share as one file, so that it is
written quickly and stays in memory. The claims: `Sweep.trials` within two seconds, and
`Sweep.load_stats` of one trial too.

    python -m benchmarks.open_sweep [trials] [rows] [rounds]
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.timing import print_table
from orchestrator import Sweep, open_sweep
from orchestrator.column_names import SPANS
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.file_format import write_parquet
from orchestrator.disk.rows.recorded_files import COMPACTED
from orchestrator.disk.rows.usage import add_usage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.tables.trial_index import TrialIndex

EPOCHS = 10
ATTEMPT = Attempt(0)
TIMES = {"status": "finished", "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:10:00Z"}


def rows_of_a_trial(count: int) -> pa.Table:
    random = np.random.default_rng(0)
    iterations = np.arange(1, count + 1)
    columns: dict[str, Any] = {
        "rank": np.zeros(count, dtype=np.int32),
        "node": ["here"] * count,
        "phase": ["train"] * count,
        "epoch": ((iterations - 1) * EPOCHS // count).astype(np.int32),
        "iteration": iterations.astype(np.int32),
        "step": iterations.astype(np.int32),
        "samples": iterations * 32,
        "batch_size": np.full(count, 32, dtype=np.int32),
        "attempt": np.zeros(count, dtype=np.int16),
        "superseded": np.zeros(count, dtype=bool),
        **{name: random.exponential(0.001, count) for name in ("loss", "lr", "step_s", *SPANS)},
        "rss_bytes": random.integers(2**28, 2**30, count),
    }
    return pa.table(columns)


def write_sweep(folder: Path, trials: int, rows: int) -> None:
    begun = {"objectives": [["val/accuracy", "max"]], "trials": trials}
    _write(folder / "run.json", {"name": "sweep", **TIMES, "sweep": begun})
    joined = folder / "rows.parquet"
    with open(joined, "xb+") as file:
        write_parquet(add_usage(rows_of_a_trial(rows), [ATTEMPT]), file)
    random = np.random.default_rng(1)
    for number in range(trials):
        trial = folder / "trials" / trial_name(number)
        values = {
            "optimizer.lr": float(random.random()),
            "hooks.ema": {},
            "hooks.ema.decay": float(random.random()),
        }
        _write(trial / "run.json", {"name": trial.name, **TIMES, "values": values, "stopped": []})
        _write(trial / "stats/attempt=0/attempt.json", asdict(ATTEMPT))
        reports = [
            {"attempt": 0, "epoch": e, "iteration": e + 1, **_metrics(random)}
            for e in range(EPOCHS)
        ]
        (trial / "metrics.jsonl").write_text(
            "".join(json.dumps(report) + "\n" for report in reports)
        )
        os.link(joined, trial / COMPACTED["rows"])
    index = TrialIndex(RunFolder(folder), [("val/accuracy", "max")])
    index.write(index.read().values())


def _metrics(random: np.random.Generator) -> dict[str, float]:
    names = (
        "val/accuracy",
        "val/loss",
        "train/loss",
        "train/accuracy",
        "train/samples_per_s",
        "memory/rss_bytes",
    )
    return {name: float(random.random()) for name in names}


def _write(file: Path, data: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))


def main(trials: int = 1000, rows: int = 10_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_sweep(Path(folder), trials, rows)
        middle, columns = trials // 2, ["iteration", "loss", "step_s"]
        reads: dict[str, Callable[[Sweep], Any]] = {
            "Sweep.trials": lambda sweep: sweep.trials,
            "Sweep.pareto": lambda sweep: sweep.pareto("val/accuracy", "step_s"),
            "Sweep.importance": lambda sweep: sweep.importance(),
            "load_stats, one trial": lambda sweep: sweep.load_stats([middle]),
            "load_stats, one trial, 3 columns of an epoch": lambda sweep: sweep.load_stats(
                [middle], columns, "epoch == 3"
            ),
            "load_stats, 3 columns of an epoch of every trial": lambda sweep: sweep.load_stats(
                columns=columns, where="epoch == 3"
            ),
        }
        lines = []
        for name, read in reads.items():
            seconds = []
            for _ in range(rounds):
                started = perf_counter()
                loaded = read(open_sweep(folder))
                seconds.append(perf_counter() - started)
            lines.append(
                (name, f"{len(loaded):,}", f"{median(seconds):.3f}", f"{max(seconds):.3f}")
            )
    title = f"Reading a sweep of {trials:,} trials and {trials * rows:,} rows"
    print_table(title, ["what", "rows read", "s, median", "s, worst"], lines)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
