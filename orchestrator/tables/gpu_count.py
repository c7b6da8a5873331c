"""The GPUs of a run over its attempts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.timestamps import seconds_at


def count_gpus(
    attempts: Sequence[Attempt],
    config: Mapping[str, Any],
    metadata: RunMetadata,
    reports: Sequence[Mapping[str, Any]],
) -> float:
    """Return the mean number of GPUs over the time of the attempts."""
    if not attempts:
        return 0
    gpus = [_count_gpus_of(attempt) for attempt in attempts]
    seconds = _measure_attempts(attempts, metadata, reports)
    count: float = gpus[-1]
    if any(seconds):
        gpu_seconds = [number * time for number, time in zip(gpus, seconds, strict=True)]
        count = sum(gpu_seconds) / sum(seconds)
    share = (config.get("workers") or {}).get("gpu")
    return count * share if isinstance(share, float) else count


def _count_gpus_of(attempt: Attempt) -> int:
    """Return the GPUs of an attempt; one that followed another trial's training has none."""
    if attempt.leader:
        return 0
    return sum(host.device.startswith("cuda") for host in attempt.hosts)


def _measure_attempts(
    attempts: Sequence[Attempt], metadata: RunMetadata, reports: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the seconds of each attempt: until the next one, or until its last report if the run
    was resumed after it, because nothing has the beginning of the pause."""
    last_reports = {
        report["attempt"]: seconds_at(report["time"]) for report in reports if "time" in report
    }
    ended = None if metadata.wall_s is None else metadata.ended
    resumes = [*map(seconds_at, metadata.resumed)]
    starts = [seconds_at(attempt.started or metadata.started) for attempt in attempts]
    seconds = []
    for attempt, start in zip(attempts, starts, strict=True):
        next_start = min((other for other in starts if other > start), default=math.inf)
        next_resume = min((moment for moment in resumes if moment > start), default=math.inf)
        end = last_reports.get(attempt.number, start)
        if next_start < next_resume:
            end = next_start
        elif ended is not None and next_resume == math.inf:
            end = seconds_at(ended)
        seconds.append(max(0.0, end - start))
    return seconds
