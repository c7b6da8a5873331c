"""Cost of a sweep as its trials grow in number: before the first, during the sweep, at its end, and
for `watch`.

The trials are made up: each has files as a finished one leaves them, with reports of the sweep's
metric and 29 others. One trial is missing, which the resume trains. On S3 what counts are requests;
their time is with 30 ms added to each.
"""

import gc
import json
import os
import tempfile
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from benchmarks.open_sweep import rows_of_a_trial
from orchestrator import open_sweep, resume_sweep
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import LaunchMetadata, SweepMetadata
from orchestrator.disk.process import Process
from orchestrator.disk.rows.recorded_files import COMPACTED
from orchestrator.disk.rows.usage import add_usage
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.sweep_folder import trial_name
from orchestrator.experiment.load import make_experiment, to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sweep.shared_training import SharedPaths
from orchestrator.report import make_report
from orchestrator.sweeps.results.comparison import compare_sweeps
from orchestrator.sweeps.results.importance import make_importance_table
from orchestrator.sweeps.search.search import DrawnTrials
from orchestrator.tables.trial_index import INDEX, TrialIndex
from orchestrator.terminal.sweep_status import LiveSweep

SIZES = (300, 1000, 3000)
REPORTS, METRICS = 10, 30
TIMES = {"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:10:00Z"}

Costs = defaultdict[str, list[float]]


def make_sweep_experiment(trials: int) -> Experiment:
    written = {
        "name": "many",
        "task": "benchmarks.sweep_memory:Trivial",
        "epochs": 1,
        "batch_size": 8,
        "sweep": {
            "metric": "val/loss",
            "mode": "min",
            "trials": trials,
            "space": {
                "optimizer.lr": {"loguniform": [0.01, 1]},
                "batch_size": {"choice": [4, 8]},
                "optimizer.momentum": {"uniform": [0, 0.9]},
            },
        },
    }
    return make_experiment(written, [Path.cwd()])


def write_sweep(
    root: Path, experiment: Experiment, trials: int, reports: int = REPORTS
) -> RunFolder:
    """A sweep whose driver was lost before its last trial."""
    assert experiment.sweep is not None
    begun = SweepMetadata([("val/loss", "min")], trials)
    sweep = RunFolder(root, "many")
    sweep.begin(to_yaml(experiment), LaunchMetadata(sweep=begun, local=True), experiment.source)
    dead = replace(Process.current(), pid=2**30)
    metadata = replace(sweep.read_metadata(), started=TIMES["started"], driver=dead)
    sweep.run_file.replace(metadata)
    joined = root / "rows.parquet"
    pq.write_table(add_usage(rows_of_a_trial(200), [Attempt(0)]), joined)
    random, search = np.random.default_rng(0), DrawnTrials(experiment.sweep, 0, {}, SharedPaths())
    for number in range(trials - 1):
        folder = root / "many" / "trials" / trial_name(number)
        (folder / "stats/attempt=0").mkdir(parents=True)
        suggestion = search.suggest()
        assert suggestion
        values = suggestion["values"]
        _write(
            folder / "run.json",
            {
                "name": folder.name,
                "trial": folder.name,
                "status": "finished",
                **TIMES,
                "values": values,
            },
        )
        _write(
            folder / "stats/attempt=0/attempt.json", asdict(Attempt(0, started=TIMES["started"]))
        )
        (folder / "experiment.yaml").write_text((root / "many/experiment.yaml").read_text())
        (folder / "metrics.jsonl").write_text(
            "".join(json.dumps(_report(random, number, each)) + "\n" for each in range(reports))
        )
        os.link(joined, folder / COMPACTED["rows"])
    return sweep


def _report(random: np.random.Generator, trial: int, number: int) -> dict[str, Any]:
    metrics = {f"train/metric_{place}": float(random.random()) for place in range(METRICS - 1)}
    at = {
        "attempt": 0,
        "epoch": number,
        "step": 10 * number + 10,
        "iteration": 10 * number + 10,
        "samples": 80 * number,
        "time": TIMES["ended"],
    }
    return {**at, "val/loss": float(random.random()) / (number + 1), **metrics}


def _write(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data))


@contextmanager
def timed(costs: Costs, name: str) -> Iterator[None]:
    began = perf_counter()
    yield
    costs[name].append(perf_counter() - began)


def on_a_disk(root: Path, trials: int, seconds: Costs, sizes: Costs) -> None:
    with timed(seconds, "checked, and its values drawn"):
        experiment = make_sweep_experiment(trials)
        assert experiment.sweep is not None
        assert DrawnTrials(experiment.sweep, 0, {}, SharedPaths()).count == trials
    sweep = write_sweep(root, experiment, trials)
    with timed(seconds, "table of trials, without an index"):
        _ = open_sweep(str(sweep)).trials
    index = TrialIndex(sweep, open_sweep(str(sweep)).objectives)
    index.write(index.read().values())
    with timed(seconds, "table of trials"):
        table = open_sweep(str(sweep)).trials
    assert len(table) == trials - 1
    with timed(seconds, "importance and its spread"):
        make_importance_table(table, "val/loss")
    with timed(seconds, "compared with itself"):
        compare_sweeps([open_sweep(str(sweep))] * 2)
    gc.collect()
    tracemalloc.start()
    live = LiveSweep(sweep)
    with timed(seconds, "watch, its first look"):
        live.read_view()
    gc.collect()
    sizes["watch, KiB it holds"].append(tracemalloc.get_traced_memory()[0] / 1024)
    tracemalloc.stop()
    with timed(seconds, "watch, another look"):
        live.read_view()
    with timed(seconds, "report"):
        page = make_report(sweep)
    sizes["report, KiB"].append(len(page.encode()) / 1024)


def read_without_index(location: str) -> Any:
    RunFolder(location).storage.delete(INDEX)
    return open_sweep(location).trials


def on_s3(root: Path, seconds: Costs, requests: Costs) -> None:
    """The sweep of a folder, from its start to its end, in the bucket."""
    location = "s3://bucket/many"
    asks: dict[str, Callable[[], Any]] = {
        "resume, one trial, and end": lambda: resume_sweep(location),
        "table of trials": lambda: open_sweep(location).trials,
        "watch, its first look": lambda: LiveSweep(RunFolder(location)).read_view(),
        "without an index": lambda: read_without_index(location),
    }
    with slow_s3(root) as count_requests:
        for name, ask in asks.items():
            count_requests()
            with timed(seconds, name):
                ask()
            requests[name].append(count_requests())


def main(sizes: Sequence[int] = ()) -> None:
    sizes = sizes or SIZES
    disk, held, s3, requests = (Costs(list) for _ in range(4))
    for trials in sizes:
        with tempfile.TemporaryDirectory() as folder:
            on_a_disk(Path(folder), trials, disk, held)
            on_s3(Path(folder), s3, requests)
    print_growth("A sweep on a disk", "s", sizes, disk)
    print_growth("Memory of the view, and its frame", "KiB", sizes, held)
    print_growth("A sweep on S3, requests of 30 ms", "s", sizes, s3)
    print_growth("A sweep on S3", "requests", sizes, requests)
