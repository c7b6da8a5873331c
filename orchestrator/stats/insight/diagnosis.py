"""A diagnosis: all that the tables say of a run, the weightiest first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats import quantities
from orchestrator.stats.insight.gradient_syncs import WAIT, GradientSyncs, gradient_syncs
from orchestrator.stats.insight.loss_anomalies import losses
from orchestrator.stats.insight.memory import memory
from orchestrator.stats.insight.regression import regression, throughput
from orchestrator.stats.insight.stragglers import LEAST_SYNCS, stragglers
from orchestrator.stats.insight.time_breakdown import data_bound, hook_costs, saving_stalls, unnamed
from orchestrator.stats.insight.verdict import Verdict


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and the numbers that say how the run did."""

    verdicts: tuple[Verdict, ...]
    """The weightiest first."""
    signs: dict[str, Any] = field(default_factory=dict)
    """The run in a few numbers: how much was looked at, how fast it was, and how far apart its ranks are."""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to say, of a run that the tables say enough of."""
        return not self.verdicts and "step_s" in self.signs

    def __str__(self) -> str:
        """The numbers as a line."""
        signs = self.signs
        if not signs["iterations"]:
            return "no training iteration was recorded"
        parts = [f"{signs['iterations']} training iterations of {signs['ranks']} rank{'s' * (signs['ranks'] != 1)}"]
        if "step_s" not in signs:
            return f"{parts[0]}; nothing was timed (perf_stats is off)"
        parts.append(f"{quantities.seconds(signs['step_s'])} each")
        shares = ("data_wait", "waiting for data"), ("all_reduce_wait", "for other ranks"), ("hooks", "in hooks"), ("checkpoint", "saving")
        for name, what in shares:
            if f"{name}_share" in signs:
                parts.append(f"{signs[f'{name}_share']:.1%} {what}")
        if "ranks_apart_share" in signs:
            parts.append(f"ranks {signs['ranks_apart_share']:.1%} apart in their own work")
        elif signs["ranks"] > 1:
            parts.append("too few iterations to compare the ranks")
        if "throughput_ratio" in signs:
            parts.append(f"{signs['throughput_ratio']:.3f} times the other run's throughput")
        return ", ".join(parts)


def diagnose(
    stats: pd.DataFrame,
    hooks: pd.DataFrame | None = None,
    against: pd.DataFrame | None = None,
    against_name: str = "the other run",
    ending: Verdict | None = None,
) -> Diagnosis:
    """Looks a stats table through. Needs pandas alone, and takes any table with the columns of docs/tables.md.

    `hooks` is the hooks' ledger, `against` the stats of a run to compare with, `ending` what is to be said of how it ended.
    What a table lacks is not looked for; `signs` says how much there was.
    """
    if not len(stats):
        return Diagnosis((ending,) if ending else (), {"iterations": 0, "ranks": 0})
    stats = stats.astype({name: str for name in ("phase", "node") if name in stats})
    exchanges = gradient_syncs(stats)
    found = [*data_bound(stats), *saving_stalls(stats), *unnamed(stats), *memory(stats), *losses(stats)]
    if exchanges is not None:
        found += stragglers(exchanges, hooks)
    if hooks is not None:
        found += hook_costs(stats, hooks)
    if against is not None:
        found += regression(stats, against, against_name)
    if ending is not None:
        found.append(ending)
    found.sort(key=lambda verdict: verdict.weight, reverse=True)
    return Diagnosis(tuple(found), vital_signs(stats, exchanges, against))


def failure(status: str, error: str | None) -> Verdict | None:
    """The verdict on a run that failed or lost its driver, which comes before all others; None of one that did not."""
    if status == "failed":
        words = (error or "it does not say why").strip().splitlines()[0]
        sentence, advice = f"the run failed: {words}", "mend what it says, then hookyard resume RUN; its log has the traceback"
    elif status == "lost":
        sentence, advice = "the run is dead: its driver is gone, and nobody has written down how it ended", "hookyard resume RUN"
    else:
        return None
    # More than any share of time.
    return Verdict("failure", sentence, {"status": status}, "hookyard show RUN", advice, weight=2.0)


def vital_signs(stats: pd.DataFrame, exchanges: GradientSyncs | None, against: pd.DataFrame | None = None) -> dict[str, Any]:
    """The run in a few numbers; shares are of the time of all training iterations."""
    rows = stats[stats["phase"] == "train"]
    signs: dict[str, Any] = {"iterations": int(rows["iteration"].nunique()), "ranks": int(rows["rank"].nunique())}
    if "step_s" not in rows or not rows["step_s"].sum() > 0:
        return signs
    signs["step_s"] = float(rows["step_s"].median())
    for name in ("data_wait_s", "hooks_s", "checkpoint_s", *([WAIT] if signs["ranks"] > 1 else [])):
        if name in rows:
            signs[f"{name.removesuffix('_s')}_share"] = float(rows[name].sum() / rows["step_s"].sum())
    if exchanges is not None and len(exchanges.ranks) > 1 and len(exchanges.iterations) >= LEAST_SYNCS:
        work = np.median(exchanges.work, axis=0)
        signs["ranks_apart_share"] = float((work.max() - work.min()) / exchanges.step_s)
    compared = throughput(stats, against) if against is not None else None
    if compared is not None:
        signs["throughput_ratio"] = compared.ratio
    return signs
