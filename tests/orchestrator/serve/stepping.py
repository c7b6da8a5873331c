"""A real run that trains an epoch whenever it is told to."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from hooks import Hook, State
from orchestrator import run
from tests.tasks import described

EPOCHS = 3


@dataclass
class Steps(Hook):
    """Waits in each epoch for a file of its number, and records two images at its end."""

    folder: str = ""

    def on_phase_end(self, state: State) -> None:
        if state.phase == "train":
            for name in ("first", "second"):
                state.record_image(name, next(state.module.parameters()).sigmoid())

    def on_phase_start(self, state: State) -> None:
        while state.phase == "train" and not Path(self.folder, str(state.epoch)).exists():
            sleep(0.05)


@contextmanager
def stepping_run(storage: Path, steps: Path) -> Iterator[None]:
    """Start a run in a process of its own, which waits for the files 0, 1 and 2 in `steps`."""
    steps.mkdir()
    command = [sys.executable, "-m", "tests.orchestrator.serve.stepping", str(storage), str(steps)]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[3], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    hooks = {"steps": {"type": "tests.orchestrator.serve.stepping:Steps", "folder": sys.argv[2]}}
    run(described(hooks=hooks, epochs=EPOCHS), sys.argv[1], "digits", local=True)
