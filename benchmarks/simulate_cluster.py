"""Whether one collector holds a cluster of 1,024 or 8,192 ranks that record 500,000 rows a second together.

In this process: the ranks' real recorders write real files and push real batches to the real collector, as fast as they
can; told are the collector's own seconds, what it holds, what it dropped, and that the table made of the files has every
row. Through Ray: a real actor, to which processes of many simulated ranks each push in real time, with the links' turns and
without; told are the collector's share of a core (by its processor seconds, which a busy machine does not change), its
memory, how old the newest row of each rank is, how long a call of the driver's takes meanwhile, and what was shed; once of a
collector that answered nothing at first. Before it, what a push costs by its size. The claim: 500,000 rows a second on less than a core, within bounds, and live.

    python -m benchmarks.simulate_cluster [seconds [ranks ...]]
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, time
from typing import Any

import numpy as np
import psutil
import ray
from numpy.typing import NDArray

from benchmarks.timing import print_table
from orchestrator.engines import collector
from orchestrator.engines.collector import Batch, Collector, CollectorLink
from orchestrator.records.run_folder import RunFolder
from orchestrator.runs.result import Run
from orchestrator.stats.recorder import Recorder
from orchestrator.stats.spans import SPANS

ROWS_PER_S = 500_000
"""What all ranks record together."""
SECONDS_WRITTEN = 4
PROCESSES = 2
"""Among which simulated ranks are shared out."""
NUMBERS = ("epoch", "iteration", "step", "samples", "loss", *SPANS, "step_s")
MIB = 2**20


class Numbers:
    """A row of 20 columns, four of which all rows of a rank have in common."""

    names = NUMBERS

    def columns(self, numbers: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        counters = {name: numbers[:, place].astype(np.int64) for place, name in enumerate(NUMBERS[:4])}
        return counters | {name: numbers[:, place] for place, name in enumerate(NUMBERS) if place >= 4}

    def value(self, name: str, numbers: Sequence[float], first: int) -> Any:
        return numbers[first + NUMBERS.index(name)]


class Timed:
    """A sink that hands batches to a collector in this process, and takes its time."""

    def __init__(self, to: Collector) -> None:
        self.collector, self.seconds, self.batches = to, 0.0, 0

    def push(self, table: str, batch: bytes) -> None:
        started = perf_counter()
        self.collector.push([(table, batch)])
        self.seconds += perf_counter() - started
        self.batches += 1


class Kept:
    """A sink that keeps the last batch."""

    batch = b""

    def push(self, table: str, batch: bytes) -> None:
        self.batch = batch


def record(recorder: Recorder, rows: int) -> None:
    numbers = np.random.default_rng(0).gamma(4.0, 0.01, (rows, len(NUMBERS)))
    numbers[:, 0], numbers[:, 1] = 0, np.arange(1, rows + 1)
    numbers[:, 2], numbers[:, 3] = numbers[:, 1], 64 * numbers[:, 1]
    recorder.begin({"phase": "train"}, Numbers())
    for row in numbers.tolist():
        recorder.append(None, row)


def identity(rank: int) -> dict[str, Any]:
    return {"rank": rank, "node": f"node-{rank // 8}", "attempt": 0}


def a_batch(rows: int) -> bytes:
    """What a rank pushes when it has recorded some rows."""
    kept = Kept()
    recorder = Recorder(identity=identity(0), sink=kept, flush_rows=rows, flush_s=float("inf"))
    record(recorder, rows)
    return kept.batch


def in_process(ranks: int) -> tuple[Any, ...]:
    per_second = ROWS_PER_S // ranks
    rows = SECONDS_WRITTEN * per_second
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place), "simulated", "hooks: {}\n", {})
        folder.storage.write("stats/attempt=0/attempt.json", json.dumps({"attempt": 0, "position": None}))
        gc.collect()
        before = process.memory_info().rss
        sink = Timed(Collector())
        for rank in range(ranks):
            recorder = Recorder(
                folder.storage, folder.rank_folder(0, rank), identity(rank), sink, flush_rows=per_second, flush_s=float("inf")
            )
            record(recorder, rows)
            recorder.close()
        held = sink.collector.batches("rows")
        grown = process.memory_info().rss - before
        table = Run(folder).load_stats(["rank", "iteration"])
        complete = len(table.drop_duplicates()) == ranks * rows
    return (
        f"{ranks:,}",
        f"{per_second}",
        f"{ranks * rows / sink.seconds / 1e6:.0f} million",
        f"{sum(map(len, held)) / MIB:.0f}",
        f"{grown / MIB:.0f}",
        f"{sink.batches - len(held):,} of {sink.batches:,}",
        f"{len(table):,} of {ranks * rows:,}" + ("" if complete else ", NOT the right ones"),
    )


class Watched(Collector):
    """The collector, which also notes from the names of what it is given how new each rank's newest row is."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, float] = {}
        self._taken = 0

    def push(self, batches: Sequence[Batch]) -> bool:
        for name, _ in batches:
            rank, _, moment = name.partition("@")
            self._newest[rank] = float(moment)
        self._taken += len(batches)
        return super().push(batches)

    def stand_still(self, seconds: int) -> None:
        """Answers nothing meanwhile."""
        sleep(seconds)

    def pid(self) -> int:
        return os.getpid()

    def seen(self) -> tuple[int, list[float]]:
        """How many batches came, and how old each rank's newest row is."""
        now = time()
        return self._taken, [now - moment for moment in self._newest.values()]


class Ranks:
    """Simulated ranks of one process, each with a link of its own. An actor."""

    def __init__(self, name: str, ranks: Sequence[int], world_size: int, turns: bool) -> None:
        if not turns:
            collector.PUSHES_PER_S = 10**9
        self._links = {rank: CollectorLink(name, rank, world_size) for rank in ranks}

    def push(self, batch: bytes, seconds: int) -> tuple[int, int]:
        """A batch of each rank's every second. Returns how many were pushed, and how many of them shed."""
        started, pushed = time(), 0
        for second in range(seconds):
            sleep(max(0.0, started + second - time()))
            if time() > started + seconds:
                break
            for rank, link in self._links.items():
                link.push(f"{rank}@{time()}", batch)
                pushed += 1
        return pushed, sum(link.dropped for link in self._links.values())


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def through_ray(ranks: int, seconds: int, turns: bool, still_s: int = 0) -> tuple[Any, ...]:
    batch = a_batch(ROWS_PER_S // ranks)
    name = f"collector-{ranks}-{turns}-{still_s}"
    actor = ray.remote(Watched).options(name=name, num_cpus=0).remote()
    shares = [range(first, ranks, PROCESSES) for first in range(PROCESSES)]
    pushers = [ray.remote(Ranks).options(num_cpus=0).remote(name, share, ranks, turns) for share in shares]
    pid = ray.get(actor.pid.remote())
    ray.get([pusher.push.remote(batch, 0) for pusher in pushers])
    pushing = [pusher.push.remote(batch, seconds) for pusher in pushers]
    if still_s:
        actor.stand_still.remote(still_s)
    looks = []
    while len(ray.wait(pushing, num_returns=len(pushing), timeout=1)[0]) < len(pushing):
        asked = perf_counter()
        taken, ages = ray.get(actor.seen.remote())
        now, memory = perf_counter(), psutil.Process(pid).memory_info().rss / MIB
        looks.append((now, cpu_seconds(pid), taken, now - asked, memory, min(ages), median(ages), max(ages)))
    pushed, shed = map(sum, zip(*ray.get(pushing), strict=True))
    for one in (actor, *pushers):
        ray.kill(one)
    # Until every rank has had a turn or two, more is pushed than taken.
    settled = np.array(looks[len(looks) // 2 :])
    took, work, taken = settled[-1, :3] - settled[0, :3]
    rows = ROWS_PER_S // ranks
    waits, memory, (newest, middle, eldest) = settled[:, 3], settled[:, 4], np.median(settled[:, 5:], axis=0)
    return (
        f"{ranks:,}, {'turns' if turns else 'no turns'}" + (f", still for {still_s} s before" if still_s else ""),
        f"{pushed * rows / seconds:,.0f}",
        f"{taken * rows / took:,.0f}",
        f"{work / took:.2f}",
        f"{taken * rows / work:,.0f}",
        f"{memory[0]:.0f}, {memory[-1]:.0f}",
        f"{newest:.1f}, {middle:.1f}, {eldest:.1f}",
        f"{np.median(waits):.2f}, {waits.max():.2f}",
        f"{shed:,} of {pushed:,}",
    )


def push_cost(rows: int, together: int, times: int = 1000) -> tuple[Any, ...]:
    actor = ray.remote(Watched).options(num_cpus=0).remote()
    pid = ray.get(actor.pid.remote())
    batches = [("0@0", a_batch(rows))] * together
    ray.get(actor.push.remote(batches))
    work = cpu_seconds(pid)
    for _ in range(times // 50):
        ray.get([actor.push.remote(batches) for _ in range(50)])
    each = (cpu_seconds(pid) - work) / (times // 50 * 50)
    ray.kill(actor)
    return f"{together} x {rows}", f"{len(batches[0][1]) * together / 1024:.0f}", f"{each * 1e6:.0f}", f"{rows * together / each:,.0f}"


def main(seconds: int = 40, *clusters: int) -> None:
    clusters = clusters or (1024, 8192)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print_table(
        f"The collector's code in a plain process ({SECONDS_WRITTEN} s of {ROWS_PER_S:,} rows a second, 20 columns)",
        ["ranks", "rows to a batch", "rows a second", "MiB held", "MiB grown", "batches dropped", "rows in the table of the files"],
        [in_process(ranks) for ranks in clusters],
    )
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=2)
    print_table(
        "What a push costs the collector's process through Ray",
        ["batches x rows", "KiB", "us of its processor", "rows a second of a core"],
        [push_cost(rows, together) for rows, together in ((61, 1), (61, 4), (61, 8), (488, 1), (488, 4))],
    )
    print_table(
        f"{ROWS_PER_S:,} rows a second through Ray: the later half of {seconds} s, {PROCESSES} processes push on the same machine",
        ["ranks", "rows pushed a second", "rows taken a second", "cores the collector used", "rows a second of a core",
         "MiB of its process, then and at the end", "s, age of the newest, median and oldest rank's newest row", "s, a call meanwhile: median, longest",
         "batches shed"],
        [
            *(through_ray(ranks, seconds, turns) for ranks in clusters for turns in (True, False)),
            through_ray(clusters[0], seconds, True, seconds // 2),
        ],
    )  # fmt: skip
    ray.shutdown()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
