"""Files, rows and reports that a run must have and has not. A file or a line that is gone leaves no
other trace."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hooks.position import Stage
from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import REPORTS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.units import format_count

_UNREPORTED = (Stage.TRAINED, Stage.VALIDATED)


def find_missing_files(metadata: RunMetadata | None, paths: Collection[str]) -> list[str]:
    """Return the missing files that a run of this status must have.

    Args:
        metadata: Content of `run.json`; None if it is damaged or missing.
        paths: The files that the run has.
    """
    recorded = [path for path in paths if path.startswith("stats/attempt=") and "/rank=" in path]
    attempts = {path.split("/")[1] for path in recorded}
    if metadata:
        attempts |= {f"attempt={number}" for number in range(metadata.attempts or 0)}

    required = ["run.json", "experiment.yaml"]
    required += [f"stats/{attempt}/attempt.json" for attempt in sorted(attempts)]
    if metadata and _has_trained(metadata):
        if metadata.reports:
            required.append(REPORTS)
        if not any(_has_rows(path) for path in paths):
            required.append("stats.parquet")
    return [path for path in required if path not in paths]


def _has_trained(metadata: RunMetadata) -> bool:
    """Return whether a run is complete and has trained itself, as a sweep does not."""
    is_complete_run = metadata.sweep is None and metadata.status in COMPLETE
    return is_complete_run and bool(metadata.attempts)


def _has_rows(path: str) -> bool:
    return path.startswith("stats") and path.endswith((".parquet", ".arrow"))


def find_missing_reports(
    attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the epochs without a report before the start of the last attempt."""
    # A custom loop, which has no order, may report at any time.
    if not all(attempt.order for attempt in attempts):
        return []

    first, *later = map(_count_reported_epochs, attempts)
    reported = {report.get("epoch") for report in reports}
    return [epoch for epoch in range(first, max(later, default=0)) if epoch not in reported]


def _count_reported_epochs(attempt: Attempt) -> int:
    """Return the number of epochs reported before the start of an attempt."""
    start = attempt.position
    return start.epoch - 1 if start.stage in _UNREPORTED else start.epoch


def find_missing_rows(
    folder: RunFolder, attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Describe each rank with fewer rows than iterations up to the last report or restored
    checkpoint."""
    required = _count_required_rows(attempts, reports)
    counts = _count_rows(folder, attempts)
    return [
        f"rank {rank} has {counts.get((rank, phase), 0):,} of {format_count(number, f'{phase} row')}"
        for (rank, phase), number in sorted(required.items())
        if counts.get((rank, phase), 0) < number
    ]


def _count_required_rows(
    attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> Counter[tuple[int, str]]:
    """Count the rows that each rank must have, by phase.

    Only rank 0 is known to have all iterations of a custom loop, and of the validation up to a
    checkpoint.
    """
    last = attempts[-1]
    starts = [attempt.position.iteration for attempt in attempts]
    reported = [report["iteration"] for report in reports if report.get("attempt") == last.number]
    ends = [min(starts[number:]) for number in range(1, len(starts))]
    ends.append(max([starts[-1], *filter(None, reported)]))

    required: Counter[tuple[int, str]] = Counter()
    required[0, "val"] = last.position.val_iterations - attempts[0].position.val_iterations
    for attempt, start, end in zip(attempts, starts, ends, strict=True):
        for rank in range(attempt.world_size if attempt.order else 1):
            required[rank, "train"] += max(end - start, 0)
    return required


def _count_rows(folder: RunFolder, attempts: Sequence[Attempt]) -> dict[Any, int]:
    """Count the valid rows of each rank by phase."""
    from orchestrator.disk.rows.valid_rows import open_valid_rows
    from orchestrator.tables.query import Rows

    rows = Rows(open_valid_rows(folder.storage, attempts))
    counts = rows.aggregate({"rows": "count(*)"}, ["rank", "split_part(phase, '/', 1)"])
    return dict(counts["rows"].to_dict())
