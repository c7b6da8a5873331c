"""Time to ask all runs of a storage: `hookyard query` over 30,000 finished runs.

The runs are made up. Each has an experiment, an attempt, ten reports and the file of rows that a
finished run leaves, which all runs share as one file, so that it is written quickly. The query
runs without the index of the storage, with it, after one run has changed, and as a command. With a
number of runs for MLflow, the same runs are logged to its SQLite store and queried there.

    python -m benchmarks.all_runs [runs] [rounds] [MLflow's runs]
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.open_sweep import rows_of_a_trial
from benchmarks.timing import print_table
from orchestrator import list_runs, load_experiment
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.rows.file_format import write_parquet
from orchestrator.disk.rows.recorded_files import COMPACTED
from orchestrator.disk.rows.usage import add_usage
from orchestrator.experiment.load import to_yaml
from orchestrator.runs.listing import query_runs
from orchestrator.tables.run_index import INDEX

EPOCHS = 10
ATTEMPT = Attempt(0)
SQL = """
    select name, status, best, total_s, "config/optimizer.lr" from runs
    where tag = 'paper' order by best desc limit 20
"""


def write_runs(storage: Path, count: int) -> list[dict[str, Any]]:
    """Write the runs, and return the parameters and last metrics of each."""
    experiment = to_yaml(load_experiment(Path(__file__).parents[1] / "experiments/digits.yaml"))
    storage.mkdir()
    rows = storage.parent / "rows.parquet"
    with open(rows, "xb+") as file:
        write_parquet(add_usage(rows_of_a_trial(200), [ATTEMPT]), file)
    random = np.random.default_rng(0)
    written = []
    for number in range(count):
        lr, accuracy, loss = map(float, random.random(3))
        folder = storage / f"run-{number:05d}"
        best = {
            "metric": "val/accuracy",
            "mode": "max",
            "value": accuracy,
            "epoch": EPOCHS - 1,
            "checkpoint": "epoch-0010",
        }
        reports = []
        for epoch in range(EPOCHS):
            metrics = {"val/accuracy": accuracy - EPOCHS + epoch + 1, "train/loss": loss}
            reports.append({"attempt": 0, "epoch": epoch, "iteration": epoch + 1, **metrics})
        run = {
            "name": folder.name,
            "status": "finished",
            "started": f"2026-01-{1 + number % 28:02d}T00:00:00Z",
            "ended": "2026-02-01T00:00:00Z",
            "tags": ["paper"] if number % 10 == 0 else [],
            "reports": EPOCHS,
            "best": best,
            "packages": {f"package-{n}": "1.0.0" for n in range(150)},
        }
        (folder / "stats/attempt=0").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(run))
        (folder / "experiment.yaml").write_text(f"{experiment}\n".replace("lr: 0.1", f"lr: {lr}"))
        (folder / "stats/attempt=0/attempt.json").write_text(json.dumps(asdict(ATTEMPT)))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reports))
        os.link(rows, folder / COMPACTED["rows"])
        written.append({"lr": lr, "val/accuracy": accuracy, "train/loss": loss})
    return written


def change_run(storage: Path) -> None:
    file = storage / "run-00000/run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "notes": str(perf_counter())}))


def measure(call: Callable[[], Any], rounds: int, before: Callable[[], Any] = int) -> list[str]:
    """Return the median and the largest time of a call, and the median of its processor time."""
    seconds = []
    processor_seconds = []
    for _ in range(rounds):
        before()
        began = perf_counter()
        used = sum(os.times()[:4])
        call()
        seconds.append(perf_counter() - began)
        processor_seconds.append(sum(os.times()[:4]) - used)
    times = (median(seconds), max(seconds), median(processor_seconds))
    return [f"{time:.2f}" for time in times]


def measure_mlflow(runs: list[dict[str, Any]], folder: Path, rounds: int) -> list[list[str]]:
    """Log the runs with MLflow's SQLite store, and search them."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("runs")
    began = perf_counter()
    for number, run in enumerate(runs):
        tags = {"paper": "yes"} if number % 10 == 0 else {}
        logged = client.create_run(experiment, tags=tags).info.run_id
        client.log_param(logged, "lr", run["lr"])
        client.log_metric(logged, "val/accuracy", run["val/accuracy"])
        client.set_terminated(logged)
    name = f"MLflow, {len(runs):,} runs"
    lines = [[f"{name}: logging", f"{perf_counter() - began:.2f}", "", ""]]
    table = measure(lambda: mlflow.search_runs([experiment], max_results=50_000), rounds)
    best = measure(
        lambda: mlflow.search_runs(
            [experiment],
            "tags.paper = 'yes'",
            order_by=["metrics.`val/accuracy` desc"],
            max_results=20,
        ),
        rounds,
    )
    return [*lines, [f"{name}: all", *table], [f"{name}: the query", *best]]


def main(count: int = 30_000, rounds: int = 5, of_mlflow: int = 0) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        storage = Path(temporary) / "runs"
        runs = write_runs(storage, count)

        def ask() -> None:
            query_runs(storage, SQL)

        command = [sys.executable, "-m", "orchestrator", "query", SQL, "--storage", str(storage)]
        lines = [
            ["the query, without an index", *measure(ask, 1)],
            ["the query, nothing has changed", *measure(ask, rounds)],
            ["the query, one run has changed", *measure(ask, rounds, lambda: change_run(storage))],
            ["list_runs, nothing has changed", *measure(lambda: list_runs(storage), rounds)],
            [
                "the command, nothing has changed",
                *measure(lambda: subprocess.run(command, check=True, capture_output=True), rounds),
            ],
        ]
        size = (storage / INDEX).stat().st_size
        if of_mlflow:
            lines += measure_mlflow(runs[:of_mlflow], Path(temporary), rounds)
    title = f"{count:,} runs, with an index of {size / 2**20:.1f} MiB"
    print_table(title, ["what", "s, median", "s, worst", "s of processor, median"], lines)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
