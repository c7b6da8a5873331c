"""Tests on real systems, which they start themselves. Where there can be none, they are skipped with
the reason."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


def mark_tests(
    items: Sequence[pytest.Item],
    folder: Path,
    mark: str,
    timeout_s: int,
    why_not: Callable[[], str],
) -> None:
    """Mark the tests of a folder, with a limit of time, and skip them if there is a reason."""
    here = [item for item in items if folder in item.path.parents]
    reason = why_not() if here else ""
    for item in here:
        item.add_marker(getattr(pytest.mark, mark))
        item.add_marker(pytest.mark.timeout(timeout_s))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def explain_missing(system: str, programs: Sequence[str], packages: str) -> str:
    """Return why this process cannot start a system that needs root and programs; empty if it
    can."""
    if os.geteuid() != 0:
        return f"{system} need root"
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return ""
    return f"{system} need {', '.join(missing)}, not installed here; on Debian: apt-get install {packages}"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.5)
