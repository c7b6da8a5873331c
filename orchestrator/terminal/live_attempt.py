"""The newest attempt of a run, read from its rows as they grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor import Finding
from orchestrator.tables.growing_files import AttemptTail
from orchestrator.terminal.estimates import compute_speed
from orchestrator.terminal.rank_comparison import RankComparison
from orchestrator.terminal.run_view import RankView, RunProgress, Speed


@dataclass(frozen=True)
class AttemptView:
    """What the rows of an attempt tell at one moment; by default nothing."""

    newest: RunProgress | None = None
    """Position of the first rank's newest row; None before the first row."""
    speed: Speed = Speed()
    ranks: Sequence[RankView] = ()
    findings: Sequence[Finding] = ()

    @property
    def row_age_s(self) -> float | None:
        """Seconds since the last row of any rank; None before the first row."""
        ages = [rank.row_age_s for rank in self.ranks if rank.row_age_s is not None]
        return min(ages, default=None)


class LiveAttempt:
    """Incremental reader of the rows of one attempt."""

    def __init__(
        self, folder: RunFolder, number: int, clock: Callable[[], float], *, diagnose: bool
    ) -> None:
        """Prepare to read an attempt.

        Args:
            folder: Folder of the run.
            number: Number of the attempt.
            clock: Returns Unix time.
            diagnose: False for no findings.
        """
        self.number = number
        self.experiment: Mapping[str, Any] = folder.read_experiment()
        """The experiment of this attempt; a resume may have edited that of an earlier one."""
        self._clock = clock
        self._tail = AttemptTail(folder.storage, f"stats/attempt={number}")
        self._comparison = RankComparison(clock, diagnose=diagnose)

    def read_view(
        self,
        attempts: Sequence[Attempt],
        reports: Sequence[Mapping[str, Any]],
        *,
        has_ended: bool,
    ) -> AttemptView:
        """Read the rows since the last call, and return what the last ones tell.

        Args:
            attempts: All attempts of the run.
            reports: Its valid reports.
            has_ended: Whether the run has ended, so that its rows may be joined.
        """
        self._tail.update()
        if has_ended and reports and not self._tail.ranks:
            self._tail.read_compacted(attempts, reports[-1]["iteration"])
        rows = self._tail.training_rows()
        self._comparison.update(rows)
        frame = rows.to_pandas()
        return AttemptView(
            self._find_newest(),
            compute_speed(frame),
            self._make_rank_views(frame),
            self._comparison.findings,
        )

    def _find_newest(self) -> RunProgress | None:
        for tail in self._tail.ranks.values():
            return RunProgress(
                phase=tail.newest["phase"],
                epoch=tail.newest["epoch"],
                step=tail.newest["step"],
                iteration=tail.trained,
            )
        return None

    def _make_rank_views(self, rows: pd.DataFrame) -> tuple[RankView, ...]:
        rss: dict[int, float] = {}
        if "rss_bytes" in rows:
            rss = dict(rows.groupby("rank")["rss_bytes"].last().dropna())

        views = []
        for rank, tail in self._tail.ranks.items():
            age_s = None if tail.written is None else max(0.0, self._clock() - tail.written)
            views.append(
                RankView(
                    rank,
                    node=str(tail.newest["node"]),
                    iteration=tail.trained,
                    row_age_s=age_s,
                    timing=self._comparison.statuses.get(rank),
                    rss_bytes=float(rss[rank]) if rank in rss else None,
                    peaks=tail.peaks,
                )
            )
        return tuple(views)
