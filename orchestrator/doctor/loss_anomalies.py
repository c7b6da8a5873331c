"""Loss anomalies: NaN, divergence, and losses that never changed."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from orchestrator.doctor.finding import Finding, format_ranks
from orchestrator.doctor.robust_statistics import Floats
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks
from orchestrator.units import format_count

MIN_ITERATIONS = 20
"""Smallest number of iterations for a finding on the course of the loss."""
MAX_ITERATIONS = 2**21
"""If there are more, neighboring iterations are averaged."""
WINDOW = 50
"""Number of iterations at each end whose medians are compared, at most a quarter of all."""
DIVERGENCE_RATIO = 2.0
"""Ratio of the last loss to the first above which training has diverged."""
UNCHANGED_RANGE = 1e-6
"""Largest range of an unchanged loss, relative to the loss."""

_WEIGHT = 2.0
"""More than any share of time: a run whose loss is useless need not be faster."""


def find_loss_anomalies(rows: Rows) -> Iterator[Finding]:
    """Yield findings on the training loss, with the ranks that caused them.

    The course of the finite losses is a finding of its own unless training ended without any: then
    it has led there.
    """
    if "loss" not in rows.columns:
        return

    columns = {
        "last": "max(iteration)",
        "bad": f"sum(rows) - {merge_blocks('loss', 'known')}",
    }
    by_rank = rows.aggregate(columns, ["rank"], TRAINING, "blocks")
    if by_rank.empty:
        return

    if by_rank["bad"].any():
        bad_ranks = _read_ranks_with_bad_loss(rows)
        if not bad_ranks.empty:
            yield _describe_non_finite(rows, bad_ranks, len(by_rank))
            if bad_ranks.index[-1] > _find_last_finite(rows):
                return

    means = _read_mean_losses(rows, int(by_rank["last"].max()))
    if len(means) >= MIN_ITERATIONS:
        finding = _find_unchanged(means) or _find_divergence(means)
        if finding:
            yield finding


def _read_ranks_with_bad_loss(rows: Rows) -> pd.Series:
    """Return the ranks whose loss was not finite, by iteration.

    As recorded, since a custom loop may record the loss only in some iterations, and `rows` has
    null for NaN.
    """
    is_bad = f"{TRAINING} and (isnan(loss::double) or isinf(loss::double))"
    columns = {"ranks": "list(rank order by rank)"}
    return rows.aggregate(columns, ["iteration"], is_bad, "recorded")["ranks"]


def _find_last_finite(rows: Rows) -> int:
    """Return the last iteration with a finite loss on any rank; 0 if there is none."""
    is_finite = f"{TRAINING} and isfinite(loss::double)"
    last = rows.aggregate({"last": "coalesce(max(iteration), 0)"}, where=is_finite)
    return int(last["last"].iloc[0])


def _describe_non_finite(rows: Rows, bad_ranks: pd.Series, n_ranks: int) -> Finding:
    counted = rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)
    iterations = int(counted["all"].iloc[0])
    first = int(bad_ranks.index[0])
    ranks = [int(rank) for rank in bad_ranks.iloc[0]]
    rank_option = f" --rank {ranks[0]}" if len(ranks) == 1 < n_ranks else ""
    return Finding(
        "loss",
        f"the loss was not finite in {len(bad_ranks)} of {format_count(iterations, 'iteration')}, first at"
        f" iteration {first}{format_ranks(ranks, n_ranks)}",
        {
            "problem": "not finite",
            "iteration": first,
            "ranks": ranks,
            "iterations": len(bad_ranks),
        },
        query="run.stats.query('not abs(loss) < 1e308')[['rank', 'iteration', 'loss']]",
        advice=f"hookyard samples RUN --where 'iteration = {first}'{rank_option} lists the samples,"
        f" hookyard replay RUN --iteration {first} --rank {ranks[0]} repeats it; the hook"
        " nan_guard ('hooks.nan_guard={action: skip}') skips such steps;"
        " anomaly_detection finds the operation; a lower learning rate or bf16 may avoid it",
        weight=_WEIGHT,
    )


def _read_mean_losses(rows: Rows, last_iteration: int) -> Floats:
    """Return the mean loss of the iterations in which it was finite on each rank that trained."""
    group_size = -(-last_iteration // MAX_ITERATIONS)
    means = rows.query(
        f"select iteration // {group_size} * {group_size} as first, avg(loss) as loss,"
        " count(*) filter (loss is null or isinf(loss)) as bad"
        f" from rows where {TRAINING} group by 1 order by 1"
    )
    return means["loss"][means["bad"] == 0].to_numpy(dtype=float)


def _find_unchanged(means: Floats) -> Finding | None:
    first = float(means[0])
    if np.ptp(means) > UNCHANGED_RANGE * max(abs(first), UNCHANGED_RANGE):
        return None
    return _make_finding(
        f"the loss never changed: it was {first:.4g} in all {len(means)} iterations",
        {"problem": "unchanged", "began": first, "iterations": len(means)},
        "look for a learning rate of 0, frozen parameters, and an output or a loss that does"
        " not depend on them",
    )


def _find_divergence(means: Floats) -> Finding | None:
    window = min(WINDOW, len(means) // 4)
    first = float(np.median(means[:window]))
    last = float(np.median(means[-window:]))
    if last - first <= (DIVERGENCE_RATIO - 1) * abs(first):
        return None
    return _make_finding(
        f"the loss diverged: from {first:.4g} in the first {window} iterations to {last:.4g}"
        " in the last",
        {"problem": "diverged", "began": first, "ended": last, "iterations": len(means)},
        "a lower learning rate, a longer warm-up or gradient_clip; checkpoint's best is from"
        " before",
    )


def _make_finding(sentence: str, numbers: dict[str, object], advice: str) -> Finding:
    query = "run.stats.query(\"phase == 'train'\").groupby('iteration')['loss'].mean()"
    return Finding("loss", sentence, numbers, query, advice, _WEIGHT)
