"""Cost of the hooked loop on a GPU: one table with a row for each figure and its aim, ready for a
dated page.

Each part is a process of its own with a time limit, so that one that crashes or hangs costs its own
rows; rows are printed as they come. Needs this repository, torch, and what
benchmarks/gpu/wheels.txt lists; of the peers those that are installed take part.

    python -m benchmarks.gpu [--device cuda|cpu] [--only PART]
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from threading import Event, Timer
from time import monotonic

import torch

from benchmarks.gpu.part import print_row
from benchmarks.timing import machine

BUDGET_S = 480
LIMITS_S = {
    "resnet50": 110,
    "gpt2": 130,
    "small_step": 60,
    "ema": 30,
    "rows": 25,
    "checkpoint": 60,
    "loading": 70,
    "memory": 45,
}
"""The parts in order, and the longest that each may take."""


def rows_of(part: str, command: Sequence[str], limit_s: float) -> Iterator[str]:
    """The rows that a part's process prints, as they come, and one more where it fails or takes too
    long. What else it says goes to stderr."""
    killed = Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def kill() -> None:
            killed.set()
            process.kill()

        over = Timer(limit_s, kill)
        over.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("| "):
                yield line.rstrip()
            else:
                print(line, end="", file=sys.stderr)
    over.cancel()
    if process.returncode:
        why = (
            f"took more than {limit_s:g} s"
            if killed.is_set()
            else f"failed with status {process.returncode}; its stderr says why"
        )
        yield f"| {part} | {why} | |"


def heading(device: str) -> list[str]:
    """Return the machine and date of the measurement; on a CPU, a note that the figures mean
    nothing."""
    if device == "cpu":
        return [
            "## On a CPU, with small shapes: that everything runs; no figure here means anything",
            "",
            machine(),
        ]
    properties = torch.cuda.get_device_properties(0)
    where = (
        f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, torch {torch.__version__}, CUDA"
        f" {torch.version.cuda}"
    )
    return [
        f"## The hooked loop on one GPU, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{where}. {machine()}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only", choices=LIMITS_S, metavar="PART", help=f"one of {', '.join(LIMITS_S)}"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            f"torch {torch.__version__} finds no GPU that it can use; --device cpu tries everything with small shapes"
        )
    print(
        "\n".join(
            [*heading(arguments.device), "", "| what | figure | aim |", "| --- | ---: | ---: |"]
        ),
        flush=True,
    )
    ends, failed = monotonic() + BUDGET_S, False
    for part in [arguments.only] if arguments.only else LIMITS_S:
        left = ends - monotonic()
        if left <= 0:
            print_row(part, f"not begun: {BUDGET_S} s are over")
            failed = True
            continue
        for row in rows_of(
            part,
            [sys.executable, "-m", f"benchmarks.gpu.{part}", "--device", arguments.device],
            min(left, LIMITS_S[part]),
        ):
            print(row, flush=True)
            failed |= row.startswith(f"| {part} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
