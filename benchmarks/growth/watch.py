"""`watch` of a run on S3 by the number of ranks, each with 1,000 rows that a recorder wrote: the
first look, and one more."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.growth._slow_s3 import slow_s3
from benchmarks.growth.law import print_growth
from orchestrator.disk.attempts import rank_folder
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.terminal.run_status import LiveRun

ROWS = 1000
TIMES = (
    "step_s",
    "data_wait_s",
    "to_device_s",
    "forward_s",
    "loss_s",
    "backward_s",
    "all_reduce_wait_s",
    "optimizer_s",
    "hooks_s",
    "other_s",
)


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (64, 256, 1024)
    costs: dict[str, list[float]] = {
        "requests, first look": [],
        "s, first look": [],
        "requests, another": [],
        "s, another": [],
    }
    for ranks in sizes:
        with tempfile.TemporaryDirectory() as folder:
            _write(folder, ranks)
            with slow_s3(Path(folder)) as requests:
                requests()
                live = LiveRun(RunFolder("s3://bucket/run"))
                for which in ("first look", "another"):
                    began = perf_counter()
                    assert len(live.read_view().ranks) == ranks
                    costs[f"s, {which}"].append(perf_counter() - began)
                    costs[f"requests, {which}"].append(float(requests()))
    print_growth("watch on S3", "ranks", sizes, costs)


def _write(root: str, ranks: int) -> None:
    run = create_run(root, "run", "name: run\nepochs: 3\n")
    run.run_file.replace(replace(run.read_metadata(), driver=None))
    run.begin_attempt(world_size=ranks)
    times = np.random.default_rng(0).uniform(0.001, 0.002, (ROWS, len(TIMES))).tolist()
    for rank in range(ranks):
        recorder = Recorder(
            run.storage, rank_folder(0, rank), {"rank": rank, "node": "node", "attempt": 0}
        )
        for iteration, own in enumerate(times, start=1):
            place = {
                "phase": "train",
                "epoch": 0,
                "iteration": iteration,
                "step": iteration,
                "samples": iteration,
                "batch_size": 8,
                "loss": 0.5,
            }
            recorder.append({**place, **dict(zip(TIMES, own, strict=True))})
        recorder.close()
