"""Comparison of the ranks of a running attempt, repeated at intervals that bound its cost."""

import math
from collections.abc import Callable, Mapping
from time import perf_counter

import pyarrow as pa

from orchestrator.doctor import Finding, diagnose
from orchestrator.doctor.rank_status import RankStatus, compare_ranks
from orchestrator.tables.query import Rows

MAX_DIAGNOSED = 128
"""Maximum number of ranks for findings, which compare all ranks."""
_INTERVAL_S = 10.0
"""Minimum seconds between two comparisons."""
_MAX_SHARE = 0.05
"""Largest share of the time that comparisons may take."""


class RankComparison:
    """Status of each rank and findings, from the last rows of an attempt."""

    def __init__(self, clock: Callable[[], float], *, diagnose: bool) -> None:
        """Prepare to compare the ranks of one attempt.

        Args:
            clock: Returns Unix time.
            diagnose: False for no findings.
        """
        self.statuses: Mapping[int, RankStatus] = {}
        """Status of each rank in the last comparison."""
        self.findings: tuple[Finding, ...] = ()
        """Findings of the last comparison."""
        self._clock = clock
        self._diagnose = diagnose
        self._next_at = -math.inf

    def update(self, rows: pa.Table) -> None:
        """Compare the ranks in training rows, if the last comparison is long enough ago."""
        if not len(rows) or self._clock() < self._next_at:
            return

        start = perf_counter()
        self._compare(rows)
        took_s = perf_counter() - start
        self._next_at = self._clock() + max(_INTERVAL_S, took_s / _MAX_SHARE)

    def _compare(self, rows: pa.Table) -> None:
        frame = rows.to_pandas()
        self.statuses = compare_ranks(frame)
        self.findings = ()
        if self._diagnose and frame["rank"].nunique() <= MAX_DIAGNOSED:
            # The table and not the frame, because pandas has no empty cells.
            self.findings = diagnose(Rows.wrap(rows)).findings
