"""Processes of the drivers, which accidents end."""

import atexit
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import HookyardError, UsageError

DONE, FAILED, MISUSED, CRASHED, INTERRUPTED, KILLED = 0, 1, 2, 70, 130, -9

PROCESSES = multiprocessing.get_context("forkserver")
WARM = [
    "benchmarks.accidents.gangs",
    "benchmarks.accidents.runs",
    "benchmarks.accidents.sweeps",
    "orchestrator.engines.in_process",
    "orchestrator.loop.loop",
    "orchestrator.sweeps.in_process",
    "torch._dynamo",
    "pandas",
]
"""Imported once, and not by each process."""


def preload() -> None:
    """Let each process start in a tenth of a second."""
    PROCESSES.set_forkserver_preload(WARM)


def run(target: Callable[..., str], folder: Path, *arguments: Any) -> tuple[int, str]:
    """Call a function that returns the status of a run or a sweep, in a process of its own.

    Returns the process's exit code, which follows the command line, and its output. The folder gets
    its output, its temporary files, and the marks of the accidents that have happened.
    """
    for name in ("marks", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=_main, args=(target, folder, arguments))
    process.start()
    process.join()
    code = process.exitcode or DONE
    process.close()
    return code, (folder / "log.txt").read_text()


def accidents(folder: Path) -> list[str]:
    """Return the kinds of accidents that have happened, by their marks."""
    return [mark.name.partition(" ")[0] for mark in sorted((folder / "marks").glob("*"))]


def _main(target: Callable[..., str], folder: Path, arguments: Any) -> None:
    output = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # `hookyard verify` may have started the server of these processes, which blocks Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    multiprocessing.util.Finalize(
        None, atexit._run_exitfuncs, exitpriority=0
    )  # as other processes do by themselves
    try:
        sys.exit(INTERRUPTED if target(*arguments) == "interrupted" else DONE)
    except HookyardError as error:
        print(error)
        sys.exit(MISUSED if isinstance(error, UsageError) else FAILED)
    except Exception:
        traceback.print_exc()
        sys.exit(CRASHED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
