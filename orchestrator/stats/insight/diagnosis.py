"""A diagnosis: all findings on a run, the most serious first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.insight.gradient_syncs import WAIT, GradientSyncs, gradient_syncs
from orchestrator.stats.insight.iteration_sample import IterationSample, sample_iterations
from orchestrator.stats.insight.loss_anomalies import losses
from orchestrator.stats.insight.memory import memory
from orchestrator.stats.insight.stragglers import LEAST_SYNCS, stragglers
from orchestrator.stats.insight.time_breakdown import data_bound, hook_costs, saving_stalls, times, unnamed
from orchestrator.stats.read.query import TRAINING, Rows


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a run, and its vital signs."""

    findings: tuple[Finding, ...]
    """Most serious first."""
    signs: dict[str, Any] = field(default_factory=dict)
    """A few numbers: how many iterations, how fast, and how far apart the ranks are."""

    @property
    def healthy(self) -> bool:
        """True without findings, if the tables are sufficient."""
        return not self.findings and "step_s" in self.signs

    def with_path(self, path: str) -> Self:
        """Put the run's path into the commands of the findings."""
        return replace(self, findings=tuple(finding.with_path(path) for finding in self.findings))

    def __str__(self) -> str:
        signs = self.signs
        if not signs["iterations"]:
            return "no training iteration was recorded"
        parts = [f"{signs['iterations']} training iterations of {signs['ranks']} rank{'s' * (signs['ranks'] != 1)}"]
        if "step_s" not in signs:
            return f"{parts[0]}; nothing was timed (perf_stats is off)"
        parts.append(f"{quantities.seconds(signs['step_s'])} each")
        shares = (
            ("data_wait", "waiting for data"),
            ("all_reduce_wait", "for other ranks"),
            ("hooks", "in hooks"),
            ("checkpoint", "saving within phases"),
        )
        for name, what in shares:
            if f"{name}_share" in signs:
                parts.append(f"{signs[f'{name}_share']:.1%} {what}")
        if "ranks_apart_share" in signs:
            seen = f" (seen in {signs['compared_share']:.1%} of the iterations)" if "compared_share" in signs else ""
            parts.append(f"ranks {signs['ranks_apart_share']:.1%} apart in their own work{seen}")
        elif signs["ranks"] > 1:
            parts.append("too few iterations to compare the ranks")
        return ", ".join(parts)


def diagnose(
    stats: Rows | pd.DataFrame,
    hooks: pd.DataFrame | None = None,
    ending: Finding | None = None,
) -> Diagnosis:
    """Diagnose the rows of a run, or any table with the columns of docs/tables.md.

    `hooks` are the hooks' costs, and `ending` is the finding on how the run ended. A missing column only means fewer
    findings.
    """
    rows = stats if isinstance(stats, Rows) else Rows.of(stats)
    if not rows.total:
        return Diagnosis((ending,) if ending else (), {"iterations": 0, "ranks": 0})
    sample, seconds = sample_iterations(rows), times(rows)
    exchanges = gradient_syncs(sample.rows)
    findings = [
        *data_bound(sample.rows, seconds),
        *saving_stalls(rows, seconds),
        *unnamed(seconds),
        *memory(rows),
        *losses(rows),
        *(stragglers(exchanges, hooks) if exchanges is not None else []),
        *(hook_costs(seconds, hooks) if hooks is not None else []),
        *([_with_replay(ending, rows)] if ending else []),
    ]
    findings.sort(key=lambda finding: finding.weight, reverse=True)
    return Diagnosis(tuple(findings), vital_signs(sample, seconds, exchanges))


def failure(status: str, error: str | None) -> Finding | None:
    """Return the finding on a run that failed or lost its driver, the most serious one; else None."""
    if status == "failed":
        words = (error or "without an error message").strip().splitlines()[0]
        sentence, advice = (
            f"the run failed: {words}",
            "fix the error, then hookyard resume RUN; the log has the traceback",
        )
    elif status == "lost":
        sentence, advice = (
            "the run is lost: its driver died before it could write how the run ended",
            "hookyard resume RUN",
        )
    else:
        return None
    # More than any share of time.
    return Finding("failure", sentence, {"status": status}, "hookyard show RUN", advice, weight=2.0)


def _with_replay(ending: Finding, rows: Rows) -> Finding:
    """Add the command that replays the failed iteration, the one after the last row."""
    last = rows.aggregate({"last": "max(iteration)"}, where=f"{TRAINING} and rank = 0")["last"].iloc[0]
    if ending.numbers["status"] != "failed" or pd.isna(last):
        return ending
    return replace(ending, advice=f"{ending.advice}; hookyard replay RUN --iteration {int(last) + 1} repeats it")


def vital_signs(sample: IterationSample, seconds: pd.DataFrame, exchanges: GradientSyncs | None) -> dict[str, Any]:
    """Return the vital signs; shares are of the time of all training iterations."""
    signs: dict[str, Any] = {"iterations": sample.iterations, "ranks": sample.ranks}
    if sample.step_s is None or not seconds["step_s"].sum() > 0:
        return signs
    signs["step_s"] = sample.step_s
    for name in ("data_wait_s", "hooks_s", "checkpoint_s", *([WAIT] if signs["ranks"] > 1 else [])):
        if name in seconds:
            signs[f"{name.removesuffix('_s')}_share"] = float(seconds[name].sum() / seconds["step_s"].sum())
    if sample.share < 1:
        signs["compared_share"] = sample.share
    if exchanges is not None and len(exchanges.ranks) > 1 and len(exchanges.iterations) >= LEAST_SYNCS:
        work = np.median(exchanges.work, axis=0)
        signs["ranks_apart_share"] = float((work.max() - work.min()) / exchanges.step_s)
    return signs
