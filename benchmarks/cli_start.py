"""Start-up time of the command line, compared with Python alone and with Ray's own command line.

Each call is a process of its own; calls go round robin. The claim: `hookyard --help` answers within
half a second.

    python -m benchmarks.cli_start [rounds]
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.timing import Pause, print_table, ratio, take_turns

BIN = Path(sys.executable).parent
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "hookyard --help": [str(BIN / "hookyard"), "--help"],
    "hookyard ls": [str(BIN / "hookyard"), "ls", "--storage", str(Path(__file__).parent)],
    "ray --help": [str(BIN / "ray"), "--help"],
    "accelerate --help": [str(BIN / "accelerate"), "--help"],
}


def calls(command: list[str], turns: int) -> Callable[[Pause], None]:
    def work(pause: Pause) -> None:
        for _ in range(turns):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            pause()

    return work


def main(rounds: int = 15) -> None:
    seconds = take_turns(
        {name: calls(command, rounds + 1) for name, command in COMMANDS.items()}, rounds
    )
    python = seconds["python -c pass"]
    rows = [
        (f"`{name}`", f"{median(times):.2f}", f"{max(times):.2f}", f"{ratio(times, python):.1f}")
        for name, times in seconds.items()
    ]
    print_table(
        f"Answers of the command line ({rounds} calls each, in turns)",
        ["command", "s, median", "s, slowest", "to python"],
        rows,
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
