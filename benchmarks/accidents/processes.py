"""Processes of the drivers, which accidents end."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DONE, FAILED, INTERRUPTED, KILLED = 0, 1, 130, -9

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "benchmarks.accidents.gangs",
        "benchmarks.accidents.runs",
        "benchmarks.accidents.sweeps",
        "orchestrator.engines.in_process",
        "orchestrator.loop.loop",
        "orchestrator.sweeps.in_process",
        "torch._dynamo",
        "pandas",
    ]
)  # so that each process starts in a tenth of a second


def run(target: Callable[..., str], log: Path, *arguments: Any) -> tuple[int, str]:
    """Call a function that returns the status of a run or a sweep, in a process of its own.

    Returns the process's exit code, which follows the command line, and its output.
    """
    process = _PROCESSES.Process(target=_main, args=(target, log, arguments))
    process.start()
    process.join()
    code = process.exitcode or DONE
    process.close()
    return code, log.read_text()


def _main(target: Callable[..., str], log: Path, arguments: Any) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        sys.exit(INTERRUPTED if target(*arguments) == "interrupted" else DONE)
    except Exception:
        traceback.print_exc()
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
