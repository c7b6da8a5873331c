"""Of Ray itself: the import path of its workers, and the settings that are not documented."""

from __future__ import annotations

import os
import sys
from typing import Any

from ray.job_config import JobConfig


class DriversImportPath(JobConfig):
    """A job whose workers have a folder before installed modules only where its driver has.

    Ray puts the current folder first on the import path of every worker, so that a user's folder `hooks` would hide
    Hookyard's there and nowhere else. An experiment's folders are appended by whoever builds it.
    """

    _py_driver_sys_path: list[str]

    def _serialize(self) -> Any:
        first = os.path.abspath(sys.path[0])
        self._py_driver_sys_path = [folder for folder in self._py_driver_sys_path if folder == first]
        return super()._serialize()
