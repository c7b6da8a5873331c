"""`hookyard doctor RUN --files`: damaged and missing files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import FAILED
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.terminal.printable import escape_data, escape_line

if TYPE_CHECKING:
    from orchestrator.doctor.checked_file import CheckedFile

_STATUSES = {
    "damaged": "damaged",
    "missing": "missing",
    "intact": "with correct checksums",
    "readable": "readable (no checksums)",
    "unknown": "not checked (such as log.txt and files of hooks)",
}
_MAX_NAMES = 3
"""Maximum number of files that are named before an advice."""


def check_run_files(run: str, as_json: bool) -> None:
    """Check every file of a run or a sweep, and print the result; exit with 1 if one is damaged."""
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.doctor.integrity import check_files

    folder = RunFolder(run)
    if Path(run).is_file() or not folder.storage.names():
        # Raises the error for what is no run. A run may lack any of its files.
        RunFolder.open(run)

    checked = list(check_files(folder))
    bad_files = [file for file in checked if file.is_damaged_or_missing]
    if as_json:
        print_json({"path": str(folder), "intact": not bad_files, "files": checked})
    else:
        _print_bad_files(escape_data(bad_files))
        echo(f"{escape_line(str(folder))}: {_count_by_status(checked)}")
    if bad_files:
        raise typer.Exit(FAILED)


def _print_bad_files(files: Sequence[CheckedFile]) -> None:
    """Print a line for each file, and the advice for them."""
    if files:
        rows = [(file.file, file.status, file.what) for file in files]
        print_table(("file", "status", "details"), rows)
    for advice in dict.fromkeys(file.advice for file in files):
        names = [file.file for file in files if file.advice == advice]
        text = ", ".join(names[:_MAX_NAMES])
        if len(names) > _MAX_NAMES:
            text += f" and {len(names) - _MAX_NAMES} more"
        echo(f"{text}: {advice}")


def _count_by_status(checked: Sequence[CheckedFile]) -> str:
    counts = Counter(str(file.status) for file in checked)
    return ", ".join(f"{counts[name]} {text}" for name, text in _STATUSES.items() if counts[name])
