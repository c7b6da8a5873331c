"""Key figures of a run: its size, where its time goes, and how far its ranks are apart."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.doctor.gradient_syncs import WAIT, GradientSyncs
from orchestrator.doctor.iteration_sample import IterationSample
from orchestrator.doctor.stragglers import MIN_SYNCS
from orchestrator.units import format_count, format_seconds

MIN_ITERATIONS = 20
"""A run with fewer iterations, and less time than MIN_SECONDS, has no findings on time."""
MIN_SECONDS = 1.0


@dataclass(frozen=True)
class KeyFigures:
    """Size of a run, where its time goes, and how far its ranks are apart.

    A share is relative to the time of the training iterations in which its span was measured; None
    if it was not measured.
    """

    iterations: int = 0
    ranks: int = 0
    step_s: float | None = None
    """Median time of an iteration; None if nothing was timed."""
    data_wait_share: float | None = None
    hooks_share: float | None = None
    checkpoint_share: float | None = None
    all_reduce_wait_share: float | None = None
    compared_share: float | None = None
    """Share of the iterations in which ranks were compared; None if it was all of them."""
    ranks_apart_share: float | None = None
    """How far ranks are apart in their own work, relative to a step; None if there are too few."""
    is_too_short: bool = False
    """True if the run took too little time to say where it went."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures that are known."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value is not False
        }

    def __str__(self) -> str:
        if not self.iterations:
            return "no training iteration was recorded"
        ranks = format_count(self.ranks, "rank")
        whole = f"{format_count(self.iterations, 'training iteration')} of {ranks}"
        if self.step_s is None:
            return f"{whole}; nothing was timed (perf_stats is off)"
        if self.is_too_short:
            return f"{whole} took too little time for a diagnosis of where it went"
        each = f"{format_seconds(self.step_s)} each"
        return ", ".join([whole, each, *self._describe_shares(), *self._describe_distance()])

    def _describe_shares(self) -> list[str]:
        shares = {
            "waiting for data": self.data_wait_share,
            "for other ranks": self.all_reduce_wait_share,
            "in hooks": self.hooks_share,
            "saving checkpoints within a phase": self.checkpoint_share,
        }
        return [f"{share:.1%} {what}" for what, share in shares.items() if share is not None]

    def _describe_distance(self) -> list[str]:
        if self.ranks_apart_share is None:
            return ["too few iterations to compare the ranks"] if self.ranks > 1 else []
        apart = f"ranks {self.ranks_apart_share:.1%} apart in their own work"
        if self.compared_share is not None:
            apart += f" (seen in {self.compared_share:.1%} of the iterations)"
        return [apart]


def compute_key_figures(
    sample: IterationSample, seconds: pd.DataFrame, syncs: GradientSyncs | None
) -> KeyFigures:
    """Compute the key figures of a run.

    Args:
        sample: A sample of its iterations.
        seconds: Times per rank, as `sum_times` returns them.
        syncs: The gradient synchronizations of the sample; None if nothing was timed.
    """
    figures = KeyFigures(
        sample.iterations,
        sample.ranks,
        is_too_short=_is_too_short(sample.iterations, seconds),
    )
    step_s = float(sample.rows["step_s"].median()) if "step_s" in sample.rows else 0.0
    if not step_s > 0:
        return figures

    compared = _count_compared(sample.rows, syncs)
    return replace(
        figures,
        step_s=step_s,
        data_wait_share=_compute_share(seconds, "data_wait_s"),
        hooks_share=_compute_share(seconds, "hooks_s"),
        checkpoint_share=_compute_share(seconds, "checkpoint_s"),
        all_reduce_wait_share=_compute_share(seconds, WAIT) if sample.ranks > 1 else None,
        compared_share=compared / sample.iterations if compared < sample.iterations else None,
        ranks_apart_share=_compute_distance(syncs) if syncs is not None else None,
    )


def _is_too_short(iterations: int, seconds: pd.DataFrame) -> bool:
    """Return whether a run is too short to say where its time goes: the first iterations warm up,
    and nobody waits for them."""
    has_times = "all_s" in seconds and bool((seconds["all_s"] > 0).any())
    return has_times and iterations < MIN_ITERATIONS and seconds["all_s"].max() < MIN_SECONDS


def _count_compared(rows: pd.DataFrame, syncs: GradientSyncs | None) -> int:
    """Count the iterations of which each compared rank has a row."""
    if syncs is None:
        return int(rows["iteration"].nunique())
    own = rows[rows["rank"].isin(syncs.ranks)]
    return int((own["iteration"].value_counts() == len(syncs.ranks)).sum())


def _compute_share(seconds: pd.DataFrame, span: str) -> float | None:
    """Return a span's share of the time of all ranks; None if it was not measured."""
    if span not in seconds or not seconds[f"{span} of"].sum() > 0:
        return None
    return float(seconds[span].sum() / seconds[f"{span} of"].sum())


def _compute_distance(syncs: GradientSyncs) -> float | None:
    """Return how far the ranks' median work is apart, relative to a step; None if there is one rank
    or too few syncs."""
    if len(syncs.ranks) < 2 or len(syncs.iterations) < MIN_SYNCS:
        return None
    work = np.median(syncs.work, axis=0)
    return float((work.max() - work.min()) / syncs.step_s)
