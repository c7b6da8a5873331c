"""Training rows that a run has lost without a trace in its files, as when the end of a growing file was cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from orchestrator.records.metadata import Attempt
from orchestrator.stats.read.counted_rows import counted_rows
from orchestrator.storage import Storage


def find_missing_rows(
    storage: Storage, attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield each rank that has fewer training rows than iterations up to the last report or restored checkpoint."""
    if not attempts or not all(attempt.has_own_rows for attempt in attempts):
        return
    last = attempts[-1].position.iteration
    reported = [report["iteration"] for report in reports if report.get("attempt") == attempts[-1].number]
    starts = [attempt.position.iteration for attempt in attempts]
    ends = [*(min(starts[number:]) for number in range(1, len(starts))), max([last, *filter(None, reported)])]
    counts: Counter[int] = Counter()
    for batch in counted_rows(storage, attempts).batches(["rank"], pc.field("phase") == "train"):
        counts.update(batch["rank"].to_pylist())
    for rank in range(max(attempt.world_size for attempt in attempts)):
        spans = zip(attempts, starts, ends, strict=True)
        needed = sum(max(end - start, 0) for attempt, start, end in spans if rank < attempt.world_size)
        if counts[rank] < needed:
            yield f"rank {rank} has {counts[rank]:,} of {needed:,} training rows"
