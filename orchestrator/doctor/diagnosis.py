"""A diagnosis: all findings on a run, the most serious first."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from orchestrator import units
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
from orchestrator.units import SPANS

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
    "phase",
    "iteration",
    "step",
    "batch_size",
    "rss_bytes",
    "step_s",
    *SPANS,
)


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a run, and its key figures."""

    findings: tuple[Finding, ...]
    """Most serious first."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Key figures: number of iterations, their time, shares of spans, and the differences between
    ranks."""

    @property
    def is_healthy(self) -> bool:
        """True if there are no findings, and iterations were timed."""
        is_timed = "step_s" in self.figures and "is_too_short" not in self.figures
        return is_timed and not self.findings

    def with_path(self, path: str) -> Self:
        """Return a copy with the run's path in the commands of the findings."""
        return replace(self, findings=tuple(finding.with_path(path) for finding in self.findings))

    def __str__(self) -> str:
        figures = self.figures
        if not figures["iterations"]:
            return "no training iteration was recorded"
        noun = "rank" if figures["ranks"] == 1 else "ranks"
        whole = f"{figures['iterations']} training iterations of {figures['ranks']} {noun}"
        if "step_s" not in figures:
            return f"{whole}; nothing was timed (perf_stats is off)"

        if "is_too_short" in figures:
            return f"{whole} took too little time for a diagnosis of where it went"

        parts = [whole, f"{units.format_seconds(figures['step_s'])} each"]
        shares = (
            ("data_wait", "waiting for data"),
            ("all_reduce_wait", "for other ranks"),
            ("hooks", "in hooks"),
            ("checkpoint", "saving checkpoints within a phase"),
        )
        for name, what in shares:
            if f"{name}_share" in figures:
                parts.append(f"{figures[f'{name}_share']:.1%} {what}")
        if "ranks_apart_share" in figures:
            apart = f"ranks {figures['ranks_apart_share']:.1%} apart in their own work"
            if "compared_share" in figures:
                apart += f" (seen in {figures['compared_share']:.1%} of the iterations)"
            parts.append(apart)
        elif figures["ranks"] > 1:
            parts.append("too few iterations to compare the ranks")
        return ", ".join(parts)


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
        return Diagnosis(
            (failure_finding,) if failure_finding else (), {"iterations": 0, "ranks": 0}
        )
    check_columns(["rank", "phase", "iteration"], rows.columns)
    sample = sample_iterations(rows)
    seconds = sum_times(rows)
    syncs = extract_gradient_syncs(sample.rows)
    figures = compute_key_figures(sample, seconds, syncs)
    findings = [*find_memory_problems(rows), *find_loss_anomalies(rows)]
    if _is_too_short(sample.iterations, seconds):
        figures["is_too_short"] = True
    else:
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
    columns_by_rank = {"rows": "sum(rows)::bigint", "first": "min(first)", "last": "max(iteration)"}
    ranks = rows.aggregate(columns_by_rank, ["rank"], TRAINING, rows.blocks)
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
) -> dict[str, Any]:
    """Return the key figures. Shares are relative to the training iterations in which a span was
    measured."""
    figures: dict[str, Any] = {"iterations": sample.iterations, "ranks": sample.ranks}
    step_s = float(sample.rows["step_s"].median()) if "step_s" in sample.rows else 0.0
    if not step_s > 0:
        return figures
    figures["step_s"] = step_s

    spans = ["data_wait_s", "hooks_s", "checkpoint_s"]
    if figures["ranks"] > 1:
        spans.append(WAIT)
    for name in spans:
        if name in seconds and seconds[f"{name} of"].sum() > 0:
            share = float(seconds[name].sum() / seconds[f"{name} of"].sum())
            figures[f"{name.removesuffix('_s')}_share"] = share

    compared = int(sample.rows["iteration"].nunique())
    if compared < sample.iterations:
        figures["compared_share"] = compared / sample.iterations
    if syncs is not None and len(syncs.ranks) > 1 and len(syncs.iterations) >= MIN_SYNCS:
        work = np.median(syncs.work, axis=0)
        figures["ranks_apart_share"] = float((work.max() - work.min()) / syncs.step_s)
    return figures
