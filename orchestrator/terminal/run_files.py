"""`run.json` and the reports of a run, read again as they change."""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import REPORTS, drop_superseded
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.storage import FileState
from orchestrator.storage.omissions import log_omission
from orchestrator.tables.growing_files import LineTail
from orchestrator.units import format_count


class RunFiles:
    """Incremental reader of a run's metadata and reports."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._metadata: RunMetadata | None = None
        self._metadata_state: FileState | None = None
        self._tail = LineTail(folder.storage, REPORTS)
        self._reports: list[dict[str, Any]] = []
        self._has_warned = False

    def read_metadata(self) -> RunMetadata:
        """Return the content of `run.json`, and read new reports; warn once if some are missing."""
        state = self._folder.storage.state("run.json")
        if self._metadata is None or state != self._metadata_state:
            self._metadata = self._folder.read_metadata()
            self._metadata_state = state

        # After `run.json`, which counts the reports: the file must have at least as many.
        self._reports += self._tail.read()
        self._warn_of_missing_reports(self._metadata)
        return self._metadata

    def list_reports(self, attempts: Sequence[Attempt]) -> list[Mapping[str, Any]]:
        """Return the reports read so far that no later attempt has superseded."""
        return drop_superseded(self._reports, attempts)

    def _warn_of_missing_reports(self, metadata: RunMetadata) -> None:
        total = metadata.reports or 0
        missing = total - len(self._reports)
        if metadata.status in COMPLETE and missing > 0 and not self._has_warned:
            count = format_count(total, "report")
            log_omission(self._folder.storage / REPORTS, f"it lacks {missing} of its {count}")
            self._has_warned = True
