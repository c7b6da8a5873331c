"""Cost of a look at a live run, compared with reading its whole table: two ranks of a million
iterations, and 256 ranks.

The rows are made by NumPy and written as ranks write them, Arrow streams of 512 rows to a batch.
The first look walks through all of them; those that follow take what came since, 20 rows of each
rank. The claim: how long a look takes is a matter of the ranks there are and not of how long the
run has gone on.

    python -m benchmarks.watch
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import IO

import pyarrow as pa

from benchmarks.tables import rows_of
from benchmarks.timing import print_table
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows.file_format import make_stream_start
from orchestrator.experiment.load import to_yaml
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.runs.result import open_run
from orchestrator.terminal.run_status import LiveRun

SIZES = {
    "2 ranks x 10,000": (2, 10_000),
    "2 ranks x 1,000,000": (2, 1_000_000),
    "256 ranks x 1,000": (256, 1000),
}
NEW_ROWS, LOOKS, FLUSH = 20, 5, 512


def seconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def write(file: IO[bytes], rows: pa.Table) -> None:
    for batch in rows.to_batches(max_chunksize=FLUSH):
        file.write(batch.serialize())
    file.flush()


def measure(place: Path, ranks: int, iterations: int) -> tuple[float, float, float]:
    """Seconds of the first look, of the quickest of the looks after it, and of reading the whole
    table."""
    experiment = Experiment(name="large", task="none:None", steps=iterations + NEW_ROWS * LOOKS)
    folder = create_run(place, "large", to_yaml(experiment))
    folder.storage.write("stats/attempt=0/attempt.json", json.dumps(asdict(Attempt(0))))
    files, tables = [], []
    for rank in range(ranks):
        rows = rows_of(rank, iterations + NEW_ROWS * LOOKS)
        name = f"stats/attempt=0/rank={rank}/rows-00000.arrow"
        files.append(folder.storage.open_stream(name, make_stream_start(rows.schema)))
        write(files[-1], rows.slice(0, iterations))
        tables.append(rows.slice(iterations))
    live = LiveRun(folder)
    first, later = seconds(live.read_view), []
    for look in range(LOOKS):
        for file, rows in zip(files, tables, strict=True):
            write(file, rows.slice(look * NEW_ROWS, NEW_ROWS))
        later.append(seconds(live.read_view))
    assert live.read_view().progress.iteration == iterations + NEW_ROWS * LOOKS
    for file in files:
        file.close()
    return first, min(later), seconds(lambda: open_run(str(folder)).stats)


def main() -> None:
    rows = []
    for name, (ranks, iterations) in SIZES.items():
        with tempfile.TemporaryDirectory() as place:
            first, later, whole = measure(Path(place), ranks, iterations)
        rows.append((name, f"{first:.2f}", f"{later:.3f}", f"{whole:.2f}", f"{later / whole:.3f}"))
    columns = ["run", "first look, s", "next look, s", "whole table, s", "next look / whole table"]
    print_table(
        "Looking at a live run, 20 new rows of each rank since the last look", columns, rows
    )


if __name__ == "__main__":
    main()
