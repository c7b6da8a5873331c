"""Time of `hookyard run`, on Ray Train and on a gang, compared with a handwritten Ray Train script
that trains and reports the same.

All are whole processes, from the shell's call to its end: Ray's start, two workers, five epochs on
the digits with validation, averaged weights and a checkpoint each, and Ray's end. Calls alternate.
Hookyard also records every rank's every step, verifies its checkpoints and writes TensorBoard.

    python -m benchmarks.run_overhead [rounds]
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.timing import Pause, print_table, ratio, take_turns

HOOKYARD = [str(Path(sys.executable).parent / "hookyard"), "run", "experiments/digits.yaml"]
BY_HAND = [sys.executable, "-m", "benchmarks.handwritten_run"]


def calls(command: list[str], turns: int) -> Callable[[Pause], None]:
    def work(pause: Pause) -> None:
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [*command, folder], check=False, capture_output=True, text=True
                )
            if done.returncode:
                raise RuntimeError(
                    f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
                )
            pause()

    return work


def main(rounds: int = 3) -> None:
    contestants = {
        "Ray Train by hand": calls(BY_HAND, rounds + 1),
        "hookyard run": calls([*HOOKYARD, "--storage"], rounds + 1),
        "hookyard run --engine gang": calls(
            [*HOOKYARD, "--engine", "gang", "--storage"], rounds + 1
        ),
    }
    seconds = take_turns(contestants, rounds)
    base = seconds["Ray Train by hand"]
    rows = [
        (
            name,
            f"{median(times):.1f}",
            f"{min(times):.1f}",
            f"{max(times):.1f}",
            f"{ratio(times, base):.2f}",
        )
        for name, times in seconds.items()
    ]
    print_table(
        f"A run of two workers, whole process ({rounds} each, alternating)",
        ["", "s, median", "min", "max", "to by hand"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
