"""Loss anomalies: NaN, divergence, and losses that never changed."""

from collections.abc import Iterator

import numpy as np

from orchestrator.doctor.finding import Finding, format_ranks
from orchestrator.doctor.robust_statistics import Floats
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.tables.row_blocks import merge_blocks

MAX_WINDOW = 51
"""Maximum number of iterations at each end whose medians are compared."""
MIN_ITERATIONS = 20
"""Smallest number of iterations for which an unchanged loss is a finding."""
UNCHANGED_RANGE = 1e-6
"""Largest range of an unchanged loss, relative to the loss."""
MAX_ITERATIONS = 2**21
"""If there are more, neighboring iterations are averaged."""
DIVERGENCE_RATIO = 2.0
"""Ratio of the last loss to the first above which training has diverged."""


def find_loss_anomalies(rows: Rows) -> Iterator[Finding]:
    """Yield findings on the training loss, with the ranks that caused them."""
    if "loss" not in rows.columns:
        return
    columns = {"last": "max(iteration)", "bad": f"sum(rows) - {merge_blocks('loss', 'known')}"}
    by_rank = rows.aggregate(columns, ["rank"], TRAINING, rows.blocks)
    if not len(by_rank):
        return
    if by_rank["bad"].any():
        yield from _find_non_finite(rows, len(by_rank))
    group_size = -(-int(by_rank["last"].max()) // MAX_ITERATIONS)
    means = rows.query(
        f"select iteration // {group_size} * {group_size} as first, avg(loss) as loss, count(*) as rows,"
        f" count(*) filter (loss is null or isinf(loss)) as bad"
        f" from rows where {TRAINING} group by 1 order by 1"
    ).set_index("first")
    finite = means["loss"][(means["rows"] >= len(by_rank)) & (means["bad"] == 0)]
    if len(finite) >= MIN_ITERATIONS:
        yield from _find_trend(finite.to_numpy(dtype=float))


def _find_non_finite(rows: Rows, ranks: int) -> Iterator[Finding]:
    # As recorded, since a custom loop may record the loss only in some iterations, and `rows` has
    # null for NaN.
    is_bad = f"{TRAINING} and (isnan(loss::double) or isinf(loss::double))"
    bad_rows = rows.aggregate(
        {"ranks": "list(rank order by rank)"}, ["iteration"], is_bad, "recorded"
    )["ranks"]
    if bad_rows.empty:
        return
    iterations = int(
        rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)["all"].iloc[0]
    )
    first, count, bad = (
        int(bad_rows.index[0]),
        len(bad_rows),
        [int(rank) for rank in bad_rows.iloc[0]],
    )
    alone = f" --rank {bad[0]}" if len(bad) == 1 < ranks else ""
    yield Finding(
        "loss",
        f"the loss was not finite in {count} of {iterations} iterations, first at iteration {first} on"
        f" {format_ranks(bad, ranks)}",
        {"problem": "not finite", "iteration": first, "ranks": bad, "iterations": count},
        "stats[~numpy.isfinite(stats['loss'])][['rank', 'iteration', 'loss']]",
        f"hookyard samples RUN --where 'iteration = {first}'{alone} lists the samples, hookyard replay RUN --iteration"
        f" {first} --rank {bad[0]} repeats it; nan_guard skips such steps; anomaly_detection finds the operation; a"
        " lower learning rate or bf16 may avoid it",
        1.0,
    )


def _find_trend(means: Floats) -> Iterator[Finding]:
    window = min(MAX_WINDOW, len(means) // 4)
    first_loss, last_loss = float(np.median(means[:window])), float(np.median(means[-window:]))
    numbers = {"began": first_loss, "ended": last_loss, "iterations": len(means)}
    query = "stats.query(\"phase == 'train'\").groupby('iteration')['loss'].mean()"
    if means.max() - means.min() <= UNCHANGED_RANGE * max(abs(first_loss), UNCHANGED_RANGE):
        yield Finding(
            "loss",
            f"the loss never changed: it was {first_loss:.4g} in all {len(means)} iterations",
            {"problem": "unchanged", **numbers},
            query,
            "look for a learning rate of 0, frozen parameters, and an output or a loss that does not depend on them",
            1.0,
        )
    elif last_loss - first_loss > (DIVERGENCE_RATIO - 1) * abs(
        first_loss
    ) and last_loss >= np.quantile(means, 0.75):
        yield Finding(
            "loss",
            f"the loss diverged: from {first_loss:.4g} in the first {window} iterations to {last_loss:.4g} in the last",
            {"problem": "diverged", **numbers},
            query,
            "a lower learning rate, a longer warm-up or gradient_clip; checkpoint's best is from before",
            1.0,
        )
