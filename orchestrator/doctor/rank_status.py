"""The last iterations of a run that is training: which rank is behind the others, and in what."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.doctor.gradient_syncs import extract_gradient_syncs
from orchestrator.doctor.robust_statistics import subtract_median_of_others
from orchestrator.doctor.stragglers import MIN_SHARE, MIN_SYNCS


@dataclass(frozen=True)
class RankStatus:
    """A rank compared with the others: median times per iteration, or per step of several
    iterations."""

    work_s: float
    """Own work, without waiting for others."""
    wait_s: float
    behind_s: float
    """Own work minus the median of the others' work."""
    span: str
    """Span in which it is furthest behind."""
    slowest: bool
    """True if it is behind by 2% or more, and more than any other rank."""


def compare_ranks(rows: pd.DataFrame) -> dict[int, RankStatus]:
    """Return the status of each rank from training rows; empty for one rank or too few rows."""
    if rows.empty or rows["rank"].nunique() < 2:
        return {}
    syncs = extract_gradient_syncs(rows)
    if syncs is None or len(syncs.iterations) < MIN_SYNCS:
        return {}

    work, wait = np.median([syncs.work, syncs.wait], axis=1)
    behind = subtract_median_of_others(work[np.newaxis])[0]
    last = int(np.argmax(behind))
    spans = list(syncs.local)
    medians = np.median([syncs.local[span] for span in spans], axis=1)
    behind_by_span = subtract_median_of_others(medians)
    return {
        rank: RankStatus(
            work_s=float(work[column]),
            wait_s=float(wait[column]),
            behind_s=float(behind[column]),
            span=spans[int(np.argmax(behind_by_span[:, column]))],
            slowest=column == last and bool(behind[column] >= MIN_SHARE * syncs.step_s),
        )
        for column, rank in enumerate(syncs.ranks)
    }
