"""A diagnosis: all findings on a run, the most serious first."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from orchestrator.column_names import SPANS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import WAIT, GradientSyncs, extract_gradient_syncs
from orchestrator.doctor.loss_anomalies import find_loss_anomalies
from orchestrator.doctor.memory import find_memory_problems
from orchestrator.doctor.stragglers import MIN_SYNCS, find_stragglers
from orchestrator.doctor.time_breakdown import (
    find_checkpoint_stalls,
    find_costly_hooks,
    find_data_waits,
    find_time_outside_spans,
    sum_times,
)
from orchestrator.tables.conditions import check_columns
from orchestrator.tables.query import TRAINING, Rows
from orchestrator.units import format_count, format_seconds

MAX_ROWS = 2**20
"""A run with more rows is sampled."""
MAX_ITERATIONS = 20_000
"""A run with more iterations is sampled."""
MIN_ITERATIONS = 20
MIN_SECONDS = 1.0
"""A run with both fewer iterations and less time has no findings on time."""
N_STRETCHES = 20
"""Number of evenly spaced stretches that a sample consists of."""
_SAMPLED_COLUMNS = (
    "rank",
    "node",
    "iteration",
    "step",
    "step_s",
    *SPANS,
)


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


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a run, and its key figures."""

    findings: tuple[Finding, ...]
    """Most serious first."""
    figures: KeyFigures = KeyFigures()

    @property
    def is_healthy(self) -> bool:
        """True if there are no findings, and iterations were timed."""
        figures = self.figures
        return not self.findings and figures.step_s is not None and not figures.is_too_short

    def with_path(self, path: str) -> Self:
        """Return a copy with the run's path in the commands of the findings."""
        return replace(self, findings=tuple(finding.with_path(path) for finding in self.findings))

    def __str__(self) -> str:
        return str(self.figures)


def diagnose_run(folder: RunFolder, rows: Rows, hooks: pd.DataFrame) -> Diagnosis:
    """Diagnose a run from its rows and its hooks' costs, and the way it ended."""
    metadata = folder.read_metadata()
    attempts = folder.read_attempts()
    failure = make_failure_finding(
        folder.find_status(metadata), metadata.error, metadata.is_user_error
    )
    epoch_iterations = attempts[-1].epoch_iterations if attempts else None
    return diagnose(rows, hooks, failure, epoch_iterations).with_path(str(folder))


def diagnose(
    stats: Rows | pd.DataFrame,
    hooks: pd.DataFrame | None = None,
    failure_finding: Finding | None = None,
    epoch_iterations: int | None = None,
) -> Diagnosis:
    """Diagnose the rows of a run, or any table with the columns of docs/reference/columns.md.

    `hooks` are the hooks' costs. `failure_finding` describes how the run failed, and
    `epoch_iterations` is the length of an epoch. Missing columns, other than the key, mean fewer
    findings. Raises UsageError without the key.
    """
    rows = stats if isinstance(stats, Rows) else Rows.wrap(stats)
    if not rows.total:
        return Diagnosis((failure_finding,) if failure_finding else ())
    check_columns(["rank", "phase", "iteration"], rows.columns)
    sample = sample_iterations(rows)
    seconds = sum_times(rows)
    syncs = extract_gradient_syncs(sample.rows)
    figures = compute_key_figures(sample, seconds, syncs)
    findings = [*find_memory_problems(rows), *find_loss_anomalies(rows)]
    if not figures.is_too_short:
        findings += find_data_waits(sample.rows, seconds)
        findings += find_checkpoint_stalls(rows, seconds)
        findings += find_time_outside_spans(seconds)
        if syncs is not None:
            findings += find_stragglers(syncs, hooks)
        if hooks is not None:
            findings += find_costly_hooks(seconds, hooks)
    if failure_finding:
        findings.append(_with_replay(failure_finding, rows, epoch_iterations))
    findings.sort(key=lambda finding: finding.weight, reverse=True)
    return Diagnosis(tuple(findings), figures)


def _is_too_short(iterations: int, seconds: pd.DataFrame) -> bool:
    """Return whether a run is too short to say where its time goes: the first iterations warm up,
    and nobody waits for them."""
    has_times = "all_s" in seconds and bool((seconds["all_s"] > 0).any())
    return has_times and iterations < MIN_ITERATIONS and seconds["all_s"].max() < MIN_SECONDS


class IterationSample(NamedTuple):
    """Training rows of every rank."""

    rows: pd.DataFrame
    """Sorted by iteration, with the columns for comparing ranks."""
    iterations: int
    """Number of iterations of the run."""
    ranks: int


def sample_iterations(rows: Rows) -> IterationSample:
    """Select the training iterations of a run in which to compare its ranks."""
    columns = [name for name in _SAMPLED_COLUMNS if name in rows.columns]
    ranks = rows.aggregate(
        {"rows": "sum(rows)::bigint", "first": "min(first)", "last": "max(iteration)"},
        ["rank"],
        TRAINING,
        rows.blocks,
    )
    if not len(ranks):
        return IterationSample(pd.DataFrame(columns=columns), 0, 0)

    first = int(ranks["first"].min())
    last = int(ranks["last"].max())
    iterations = last - first + 1
    if ranks["rows"].max() < iterations:
        # No rank has all of them, so they must be counted.
        counted = rows.aggregate({"all": "count(distinct iteration)"}, where=TRAINING)
        iterations = int(counted["all"].iloc[0])

    where = TRAINING
    max_iterations = min(MAX_ITERATIONS, max(N_STRETCHES, MAX_ROWS // len(ranks)))
    if iterations > max_iterations:
        where = f"{TRAINING} and {_select_stretches(first, last, max_iterations // N_STRETCHES)}"
    sample = rows.query(
        f"select {', '.join(columns)} from rows where {where} order by iteration, rank"
    )
    return IterationSample(sample, iterations, len(ranks))


def _select_stretches(first: int, last: int, length: int) -> str:
    """Return the SQL condition of evenly spaced stretches of iterations."""
    starts = np.linspace(first, last + 1 - length, N_STRETCHES).astype(int)
    stretches = [f"iteration between {start} and {start + length - 1}" for start in starts]
    return f"({' or '.join(stretches)})"


def make_failure_finding(
    status: str, error: str | None, is_user_error: bool = True
) -> Finding | None:
    """Return the finding on a run that failed or lost its driver, the most serious of all; None for
    other runs."""
    if status == "failed":
        message = (error or "without an error message").strip().splitlines()[0]
        sentence = f"the run failed: {message}"
        advice = "hookyard resume RUN"
        if is_user_error:
            advice = f"fix the task, or edit experiment.yaml in the run's folder, then {advice}"
    elif status == "lost":
        sentence = "the run is lost: its driver died before it could write how the run ended"
        advice = "hookyard resume RUN"
    else:
        return None
    # The weight is more than that of any other finding.
    return Finding("failure", sentence, {"status": status}, "hookyard show RUN", advice, weight=3.0)


def _with_replay(failure_finding: Finding, rows: Rows, epoch_iterations: int | None) -> Finding:
    """Add the command that replays the failed iteration, which is the one after the last row.

    A run whose last row ends an epoch failed after it: in a hook, in validation, or while saving.
    """
    recorded = rows.aggregate({"last": "max(iteration)"}, where=f"{TRAINING} and rank = 0")
    last = recorded["last"].iloc[0]
    has_failed = failure_finding.numbers["status"] == "failed" and not pd.isna(last)
    if not has_failed or (epoch_iterations and int(last) % epoch_iterations == 0):
        return failure_finding
    advice = f"{failure_finding.advice}; hookyard replay RUN --iteration {int(last) + 1} repeats it"
    return replace(failure_finding, advice=advice)


def compute_key_figures(
    sample: IterationSample, seconds: pd.DataFrame, syncs: GradientSyncs | None
) -> KeyFigures:
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


def _count_compared(rows: pd.DataFrame, syncs: GradientSyncs | None) -> int:
    """Count the iterations of which each compared rank has a row."""
    if syncs is None:
        return int(rows["iteration"].nunique())
    own = rows[rows["rank"].isin(syncs.ranks)]
    return int((own["iteration"].value_counts() == len(syncs.ranks)).sum())


def _compute_share(seconds: pd.DataFrame, span: str) -> float | None:
    if span not in seconds or not seconds[f"{span} of"].sum() > 0:
        return None
    return float(seconds[span].sum() / seconds[f"{span} of"].sum())


def _compute_distance(syncs: GradientSyncs) -> float | None:
    if len(syncs.ranks) < 2 or len(syncs.iterations) < MIN_SYNCS:
        return None
    work = np.median(syncs.work, axis=0)
    return float((work.max() - work.min()) / syncs.step_s)
