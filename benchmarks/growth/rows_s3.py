"""Cost of the rows of a run on an object store whose requests take 30 ms each: during the run, and
at its end.

Two ranks record 18,000 rows an hour, upload new rows every half a minute as their threads do, and
wait for a checkpoint's rows every hour. At the end, the run is compacted as if it had too many rows
for one file. A column is a number of hours. Requests are counted for each rank, because ranks make
them in parallel.

    python -m benchmarks.growth rows-s3 [hours ...]
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import perf_counter

import numpy as np

from benchmarks.growth._slow_s3 import DELAY_S, slow_s3
from benchmarks.growth.law import print_growth
from orchestrator.disk.attempts import Attempt, rank_folder
from orchestrator.disk.rows import compaction
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.disk.run_folder import RunFolder
from orchestrator.loop.spans.columns import SPAN_COLUMNS
from orchestrator.loop.step.columns import make_columns
from orchestrator.storage import Storage
from orchestrator.tables.frames import load

RANKS, ROWS_A_SEND, SENDS_AN_HOUR = 2, 150, 120


class _Costs:
    """Seconds and requests by purpose."""

    def __init__(self, requests: Callable[[], int]) -> None:
        self._asked = requests
        self.results: dict[str, float] = {}

    def measure(self, name: str, work: Callable[[], object], among: int = 1) -> None:
        self._asked()
        started = perf_counter()
        work()
        for unit, cost in (("requests", self._asked()), ("s", perf_counter() - started)):
            self.results[f"{name}: {unit}"] = self.results.get(f"{name}: {unit}", 0) + cost / among


def run_for(hours: int, costs: _Costs) -> None:
    run = Storage(f"s3://bucket/{hours}")
    run.write(
        "run.json",
        json.dumps({"name": str(hours), "status": "finished", "started": "2026-01-01T00:00:00Z"}),
    )
    run.write("stats/attempt=0/attempt.json", json.dumps(asdict(Attempt(0))))
    for rank in range(RANKS):
        identity = {"rank": rank, "node": "here", "attempt": 0}
        recorder = Recorder(
            run,
            rank_folder(0, rank),
            identity,
            flush_rows=5,
            flush_s=1e9,
            upload_interval_s=1e9,
        )
        files = recorder._files
        assert files is not None
        recorder.begin({"phase": "train", "epoch": 0}, make_columns(("loss", "lr"), SPAN_COLUMNS))
        numbers, iteration = np.random.default_rng(rank), 0
        for _ in range(hours):
            for _ in range(SENDS_AN_HOUR):
                for marks in numbers.random((ROWS_A_SEND, 21)):
                    iteration += 1
                    recorder.append(
                        None, (iteration, iteration, 32 * iteration, 32, 0.5, 0.1, *marks)
                    )
                costs.measure("a rank's thread sends", files.sync, RANKS)
                costs.measure("a rank's thread rewrites", files._rewriter.rewrite_due, RANKS)
            recorder.append_costs(
                [
                    {
                        "iteration": iteration,
                        "hook": f"hook_{n}",
                        "event": "on_step",
                        "calls": 1,
                        "seconds": 1.0,
                    }
                    for n in range(40)
                ]
            )
            costs.measure("a rank waits before its checkpoints", recorder.sync, RANKS)
        costs.measure("a rank closes", recorder.close, RANKS)
    attempts = RunFolder(run).read_attempts()
    costs.measure("the driver compacts", lambda: compaction.compact(run, attempts))
    costs.measure(
        "three columns of a rank are read",
        lambda: load(run, attempts, ["iteration", "step_s", "loss"], "rank == 0"),
    )


def main(sizes: Sequence[int]) -> None:
    sizes = sizes or (3, 6, 12)
    compaction.JOINED_ROWS = 0
    with slow_s3() as requests:
        results = []
        for hours in sizes:
            costs = _Costs(requests)
            run_for(hours, costs)
            results.append(costs.results)
    print_growth(
        f"Rows of {RANKS} ranks on S3, {DELAY_S * 1000:g} ms a request",
        "hours",
        sizes,
        {name: [result[name] for result in results] for name in results[0]},
    )
