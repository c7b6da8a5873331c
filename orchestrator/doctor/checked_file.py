"""The result of the check of a file, and the advice for a damaged one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.disk import experiment_file, run_file
from orchestrator.disk.reports import REPORTS
from orchestrator.storage.omissions import collecting_omissions

FileStatus = Literal["intact", "readable", "unknown", "damaged", "missing"]
"""`intact`: its checksums match. `readable`: valid, without checksums. `unknown`: not read, such as
`log.txt` and files of hooks or the user."""

ADVICE_FOR_ROWS = (
    "The rows of this file are lost unless you restore a copy; all other rows, reports and"
    " checkpoints are intact"
)
ADVICE_FOR_REPORTS = "Restore the file from a backup to recover its reports"
ADVICE_FOR_OTHERS = "Restore it from a backup, or continue without it: nothing depends on it"
NO_FILE = "the file does not exist"
"""Problem of a file that is missing."""


@dataclass(frozen=True)
class CheckedFile:
    """Result of the check of one file."""

    file: str
    """Path in the run's folder, or the full path of a file elsewhere."""
    status: FileStatus
    what: str = ""
    """The problem, and its location in the file."""
    advice: str = ""

    @property
    def is_damaged_or_missing(self) -> bool:
        return self.status in ("damaged", "missing")


def run_check(check: Callable[[], FileStatus], path: str, advice: str) -> CheckedFile:
    """Return the result of a check, which raises or logs damage."""
    try:
        with collecting_omissions() as omissions:
            status = check()
    except FileNotFoundError:
        return CheckedFile(path, "missing", NO_FILE, advice)
    except Exception as error:  # of any reader
        what = getattr(error, "what", str(error))
        return CheckedFile(path, "damaged", what, getattr(error, "advice", advice))

    if omissions:
        return CheckedFile(path, "damaged", "; ".join(omissions), advice)
    return CheckedFile(path, status)


def get_advice(path: str) -> str:
    """Return the advice for a damaged or missing file."""
    if path.endswith((".arrow", ".parquet")):
        return ADVICE_FOR_ROWS
    if path == REPORTS:
        return ADVICE_FOR_REPORTS
    if path == run_file.RUN_FILE:
        return run_file.ADVICE
    return experiment_file.ADVICE.get(path, ADVICE_FOR_OTHERS)
