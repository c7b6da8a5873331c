"""The trials that run in this attempt of a sweep, and what they reported last. Used in the driver."""

from collections.abc import Mapping
from typing import Any

from orchestrator.tables.trial_record import TrialRecord


class ActiveReports:
    """The trials that have begun and not ended, by number, and the last report of each trial that
    has not ended, which may be of an earlier attempt.

    `previous` are the trials of earlier attempts.
    """

    def __init__(self, previous: Mapping[int, TrialRecord]) -> None:
        self._active: set[int] = set()
        self._last: dict[int, Mapping[str, Any]] = {}
        for number, trial in previous.items():
            if not trial.has_ended and trial.compared_reports:
                self._last[number] = trial.compared_reports[-1]

    def list_active(self) -> list[int]:
        return sorted(self._active)

    def is_active(self, number: int) -> bool:
        return number in self._active

    def begin(self, number: int) -> None:
        self._active.add(number)

    def add_report(self, number: int, report: Mapping[str, Any]) -> None:
        self._last[number] = report

    def interrupt(self, number: int) -> None:
        """Let a trial wait for the next attempt. It has not ended."""
        self._active.discard(number)

    def end(self, number: int) -> Mapping[str, Any] | None:
        """End a trial; return its last report, or None if it has none."""
        self._active.discard(number)
        return self._last.pop(number, None)
