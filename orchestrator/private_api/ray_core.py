"""Ray core: the import path of workers, a local Ray's processes, drained nodes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray._private.node import Node
from ray._private.state import state
from ray.job_config import JobConfig


class DriversImportPath(JobConfig):
    """Job config that gives workers the driver's import path.

    Ray puts the current folder first on the import path of every worker, where a user's folder
    `hooks` would hide Hookyard's. On the driver's machine, workers get its whole path, so tasks of
    other libraries, such as Ray Data's, find the experiment's modules. On other machines the
    experiment appends its folders.
    """

    _py_driver_sys_path: list[str]

    def __init__(self, *, on_this_machine: bool) -> None:
        super().__init__()
        self._on_this_machine = on_this_machine

    def _serialize(self) -> Any:
        folders = [os.path.abspath(folder) for folder in sys.path]
        first = [folder for folder in self._py_driver_sys_path if folder == folders[0]]
        # Reversed, because a worker inserts each folder at the front.
        self._py_driver_sys_path = folders[::-1] if self._on_this_machine else first
        return super()._serialize()


def draining_nodes() -> set[str]:
    """Return the ids of nodes about to be removed. Ray's public API lists only alive and dead
    nodes."""
    return set(state.get_draining_nodes())


@contextmanager
def with_few_processes() -> Iterator[None]:
    """Start Ray on this machine without autoscaler, dashboard and log monitor.

    Each is a process that takes a second to start. A local Ray, which ends with its run, needs none
    of them.
    """
    started = {
        name: getattr(Node, name)
        for name in ("start_monitor", "start_api_server", "start_log_monitor")
    }
    for name in started:
        setattr(Node, name, lambda node, **options: None)
    try:
        yield
    finally:
        for name, start in started.items():
            setattr(Node, name, start)
