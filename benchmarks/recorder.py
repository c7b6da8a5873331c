"""Cost of recording a row of 20 columns, with the flush to disk, at the start of a run and a
million rows later.

Beside it: only building the row; a line of JSON per row; and TensorBoard, one scalar per column.
Contestants take turns of many rows each. The claim: a recorded row costs tens of microseconds at
most, and no more after a million rows.

    python -m benchmarks.recorder [rounds]
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from benchmarks.timing import Pause, print_table, take_turns
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.storage import Storage

ROWS = 10_000
TENSORBOARD_ROWS = 200
NAMES = ("phase", "epoch", "iteration", *(f"column_{index}" for index in range(17)))


def make_row(iteration: int) -> dict[str, Any]:
    return dict(
        zip(NAMES, ("train", iteration // ROWS, iteration, *[iteration * 1e-6] * 17), strict=True)
    )


def many_rows(
    take: Callable[[dict[str, Any]], object], turns: int, pause: Pause, rows: int = ROWS
) -> None:
    iteration = 0
    for _ in range(turns):
        for _ in range(rows):
            take(make_row(iteration))
            iteration += 1
        pause()


def hookyard(folder: Path, turns: int, pause: Pause) -> None:
    recorder = Recorder(Storage(folder), "rank=0", {"rank": 0, "node": "here", "attempt": 0})
    many_rows(recorder.append, turns, pause)
    recorder.close()


def json_lines(folder: Path, turns: int, pause: Pause) -> None:
    with open(folder / "rows.jsonl", "w") as file:
        many_rows(lambda row: file.write(json.dumps(row) + "\n"), turns, pause)


def tensorboard(folder: Path, turns: int, pause: Pause) -> None:
    with SummaryWriter(str(folder)) as writer:

        def write(row: dict[str, Any]) -> None:
            for name in NAMES[1:]:
                writer.add_scalar(name, row[name], row["iteration"])

        many_rows(write, turns, pause, TENSORBOARD_ROWS)


def building_only(folder: Path, turns: int, pause: Pause) -> None:
    many_rows(lambda row: None, turns, pause)


def main(rounds: int = 100) -> None:
    work = {
        "building the row only": building_only,
        "Hookyard": hookyard,
        "JSON Lines": json_lines,
        "TensorBoard": tensorboard,
    }
    with tempfile.TemporaryDirectory() as folder:
        seconds = take_turns(
            {
                name: lambda pause, run=run, place=Path(folder) / name: (
                    place.mkdir(),
                    run(place, rounds + 1, pause),
                )
                for name, run in work.items()
            },
            rounds,
        )
    rows = []
    for name, times in seconds.items():
        count = TENSORBOARD_ROWS if name == "TensorBoard" else ROWS
        each = [time / count * 1e6 for time in times]
        rows.append(
            (
                name,
                f"{median(each):.1f}",
                f"{each[0]:.1f}",
                f"{each[-1]:.1f}",
                f"{rounds * count:,}",
            )
        )
    print_table(
        "Recording a row of 20 columns",
        ["recorder", "us, median", "us, first turn", "us, last turn", "rows"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
