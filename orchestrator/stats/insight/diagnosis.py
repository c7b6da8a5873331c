"""A diagnosis: all that the tables say of a run, the weightiest first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from orchestrator.stats.aggregate import quantities
from orchestrator.stats.insight.finding import Finding
from orchestrator.stats.insight.gradient_syncs import WAIT, GradientSyncs, gradient_syncs
from orchestrator.stats.insight.iteration_sample import TRAINING, IterationSample, sample_iterations
from orchestrator.stats.insight.loss_anomalies import losses
from orchestrator.stats.insight.memory import memory
from orchestrator.stats.insight.regression import regression, throughput
from orchestrator.stats.insight.stragglers import LEAST_SYNCS, stragglers
from orchestrator.stats.insight.time_breakdown import data_bound, hook_costs, saving_stalls, times, unnamed
from orchestrator.stats.read.query import Rows


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and the numbers that say how the run did."""

    findings: tuple[Finding, ...]
    """The weightiest first."""
    signs: dict[str, Any] = field(default_factory=dict)
    """The run in a few numbers: how much was looked at, how fast it was, and how far apart its ranks are."""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to say, of a run that the tables say enough of."""
        return not self.findings and "step_s" in self.signs

    def of_run(self, path: str) -> Self:
        """The same with the run's path in the commands of the findings."""
        return replace(self, findings=tuple(finding.of_run(path) for finding in self.findings))

    def __str__(self) -> str:
        """The numbers as a line."""
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
        if "throughput_ratio" in signs:
            parts.append(f"{signs['throughput_ratio']:.3f} times the other run's throughput")
        return ", ".join(parts)


def diagnose(
    stats: Rows | pd.DataFrame,
    hooks: pd.DataFrame | None = None,
    against: Rows | pd.DataFrame | None = None,
    against_name: str = "the other run",
    ending: Finding | None = None,
    sample: IterationSample | None = None,
) -> Diagnosis:
    """Looks the rows of a run through, or any table with the columns of docs/tables.md.

    `hooks` is the hooks' ledger, `against` the rows of a run to compare with, `ending` what is to be said of how it
    ended, `sample` holds the iterations to compare, if known. What a table lacks is not looked for; `signs` says
    how much there was.
    """
    rows = stats if isinstance(stats, Rows) else Rows.of(stats)
    if not rows.total:
        return Diagnosis((ending,) if ending else (), {"iterations": 0, "ranks": 0})
    sample, found_s = sample or sample_iterations(rows), times(rows)
    exchanges = gradient_syncs(sample.rows, sample.share)
    other = against if against is None or isinstance(against, Rows) else Rows.of(against)
    compared = None if other is None else throughput(rows, other)
    found = [
        *data_bound(sample.typical, found_s),
        *saving_stalls(rows, found_s),
        *unnamed(found_s),
        *memory(rows, sample.typical),
        *losses(rows),
    ]
    if exchanges is not None:
        found += stragglers(exchanges, hooks)
    if hooks is not None:
        found += hook_costs(found_s, hooks)
    if compared is not None and other is not None:
        found += regression(rows, other, compared, against_name)
    if ending is not None:
        found.append(_with_its_moment(ending, rows))
    found.sort(key=lambda finding: finding.weight, reverse=True)
    signs = vital_signs(sample, found_s, exchanges)
    if compared is not None:
        signs["throughput_ratio"] = compared.ratio
    return Diagnosis(tuple(found), signs)


def failure(status: str, error: str | None) -> Finding | None:
    """The finding on a run that failed or lost its driver, which comes before all others; None of one that did not."""
    if status == "failed":
        words = (error or "it does not say why").strip().splitlines()[0]
        sentence, advice = (
            f"the run failed: {words}",
            "mend what it says, then hookyard resume RUN; its log has the traceback",
        )
    elif status == "lost":
        sentence, advice = (
            "the run is dead: its driver is gone, and nobody has written down how it ended",
            "hookyard resume RUN",
        )
    else:
        return None
    # More than any share of time.
    return Finding("failure", sentence, {"status": status}, "hookyard show RUN", advice, weight=2.0)


def _with_its_moment(ending: Finding, rows: Rows) -> Finding:
    """The finding on how a run ended, with the command that comes to where it failed again: rows end before it."""
    last = rows.aggregate({"last": "max(iteration)"}, where=f"{TRAINING} and rank = 0")["last"].iloc[0]
    if ending.numbers["status"] != "failed" or pd.isna(last):
        return ending
    return replace(ending, advice=f"{ending.advice}; hookyard replay RUN --iteration {int(last) + 1} comes to it again")


def vital_signs(sample: IterationSample, found: pd.DataFrame, exchanges: GradientSyncs | None) -> dict[str, Any]:
    """The run in a few numbers; shares are of the time of all training iterations."""
    signs: dict[str, Any] = {"iterations": sample.iterations, "ranks": sample.ranks}
    if sample.step_s is None or not found["step_s"].sum() > 0:
        return signs
    signs["step_s"] = sample.step_s
    for name in ("data_wait_s", "hooks_s", "checkpoint_s", *([WAIT] if signs["ranks"] > 1 else [])):
        if name in found:
            signs[f"{name.removesuffix('_s')}_share"] = float(found[name].sum() / found["step_s"].sum())
    if sample.share < 1:
        signs["compared_share"] = sample.share
    if exchanges is not None and len(exchanges.ranks) > 1 and len(exchanges.iterations) >= LEAST_SYNCS:
        work = np.median(exchanges.work, axis=0)
        signs["ranks_apart_share"] = float((work.max() - work.min()) / exchanges.step_s)
    return signs
