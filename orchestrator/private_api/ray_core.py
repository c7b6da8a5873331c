"""Of Ray itself: the import path of its workers, and the settings that are not documented."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray._private.node import Node
from ray.job_config import JobConfig


class DriversImportPath(JobConfig):
    """A job whose workers have a folder before installed modules only where its driver has.

    Ray puts the current folder first on the import path of every worker, so that a user's folder `hooks` would hide
    Hookyard's there and nowhere else. Workers on the driver's machine have its import path, so that tasks which others
    start, such as Ray Data's, find the experiment's modules; elsewhere an experiment's folders are appended by whoever
    builds it.
    """

    _py_driver_sys_path: list[str]

    def __init__(self, *, on_this_machine: bool) -> None:
        super().__init__()
        self._on_this_machine = on_this_machine

    def _serialize(self) -> Any:
        drivers = [os.path.abspath(folder) for folder in sys.path]
        first = [folder for folder in self._py_driver_sys_path if folder == drivers[0]]
        # A worker puts one after the other in front.
        self._py_driver_sys_path = drivers[::-1] if self._on_this_machine else first
        return super()._serialize()


@contextmanager
def few_processes() -> Iterator[None]:
    """Within it Ray starts on this machine without its autoscaler, its dashboard and what sends logs to drivers.

    Each is a process that takes a small machine a second, and a Ray that ends with its run uses none of them.
    """
    started = {name: getattr(Node, name) for name in ("start_monitor", "start_api_server", "start_log_monitor")}
    for name in started:
        setattr(Node, name, lambda node, **options: None)
    try:
        yield
    finally:
        for name, start in started.items():
            setattr(Node, name, start)
