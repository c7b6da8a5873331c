"""`hookyard` in a process of its own, forked from one that has imported torch."""

import os
import runpy
import sys
import tempfile

from tests.ranks import FORKSERVER


class Driver:
    """A process that runs `hookyard` in the current folder, perhaps in a process group of its own.
    Call `wait` at the end."""

    def __init__(self, *arguments: str, has_own_group: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        pipe = f"{self._folder.name}/stderr"
        os.mkfifo(pipe)
        self._process = FORKSERVER.Process(
            target=_drive, args=[os.getcwd(), {**os.environ}, pipe, [*arguments], has_own_group]
        )
        self._process.start()
        self.stderr = os.fdopen(os.open(pipe, os.O_RDONLY))

    def send_signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def send_signal_to_group(self, number: int) -> None:
        """Send a signal to the process group, as terminals and the command `timeout` do."""
        assert self._process.pid is not None
        os.killpg(self._process.pid, number)

    def wait(self) -> tuple[int | None, str]:
        """Return the exit code, and the rest of what it wrote to stderr."""
        with self.stderr, self._folder:
            rest = self.stderr.read()
            self._process.join(timeout=120)
        return self._process.exitcode, rest


def _drive(
    folder: str, environment: dict[str, str], pipe: str, arguments: list[str], has_own_group: bool
) -> None:
    if has_own_group:
        os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.update(environment)
    os.dup2(os.open(pipe, os.O_WRONLY), 2)
    sys.argv[:], sys.path[0] = ["hookyard", *arguments], folder
    runpy.run_module("orchestrator", run_name="__main__", alter_sys=True)
