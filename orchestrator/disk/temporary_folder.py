"""Temporary folders of this process."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

_PREFIX = "hookyard-query-"


def temporary_folder() -> str:
    """Make a folder for rows that do not fit in memory, and remove folders left behind by dead
    processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
