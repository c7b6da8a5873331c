"""A diagnosis: all findings on a run, the most serious first."""

from dataclasses import dataclass, replace
from typing import Self

import pandas as pd

from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor.failure import find_failure
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.gradient_syncs import extract_gradient_syncs
from orchestrator.doctor.hook_costs import find_costly_hooks
from orchestrator.doctor.iteration_sample import sample_iterations
from orchestrator.doctor.key_figures import KeyFigures, compute_key_figures
from orchestrator.doctor.loss_anomalies import find_loss_anomalies
from orchestrator.doctor.memory import find_memory_problems
from orchestrator.doctor.memory_leaks import find_memory_leaks
from orchestrator.doctor.stragglers import find_stragglers
from orchestrator.doctor.time_breakdown import (
    find_checkpoint_stalls,
    find_data_waits,
    find_time_outside_spans,
    sum_times,
)
from orchestrator.tables.conditions import check_columns
from orchestrator.tables.query import Rows


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a run, and its key figures."""

    findings: tuple[Finding, ...]
    """Most serious first."""
    figures: KeyFigures = KeyFigures()

    @property
    def is_healthy(self) -> bool:
        """True if there are no findings, and iterations were timed."""
        return not self.findings and self._has_times

    @property
    def verdict(self) -> str:
        """What to say of a run without findings: that there are none, or why none can be made."""
        if self._has_times:
            return "no findings"
        if self.figures.iterations and not self.figures.is_too_short:
            return "no times to diagnose"
        return "too few rows to tell"

    @property
    def _has_times(self) -> bool:
        return self.figures.step_s is not None and not self.figures.is_too_short

    def with_path(self, path: str) -> Self:
        """Return a copy with the run's path in the commands of the findings."""
        return replace(self, findings=tuple(finding.with_path(path) for finding in self.findings))

    def __str__(self) -> str:
        return str(self.figures)


def diagnose_run(folder: RunFolder, rows: Rows, hooks: pd.DataFrame) -> Diagnosis:
    """Diagnose a run from its rows and its hooks' costs, and the way it ended."""
    diagnosis = diagnose(rows, hooks)
    failure = find_failure(folder, rows)
    if failure:
        diagnosis = replace(diagnosis, findings=(failure, *diagnosis.findings))
    return diagnosis.with_path(str(folder))


def diagnose(stats: Rows | pd.DataFrame, hooks: pd.DataFrame | None = None) -> Diagnosis:
    """Diagnose the rows of a run, or any table with the columns of docs/reference/columns.md.

    Missing columns, other than the key, mean fewer findings.

    Args:
        stats: The rows.
        hooks: The hooks' costs.

    Raises:
        UsageError: If a column of the key is missing.
    """
    rows = stats if isinstance(stats, Rows) else Rows.wrap(stats)
    if not rows.total:
        return Diagnosis(())

    check_columns(["rank", "phase", "iteration"], rows.columns)
    sample = sample_iterations(rows)
    seconds = sum_times(rows)
    syncs = extract_gradient_syncs(sample.rows)
    figures = compute_key_figures(sample, seconds, syncs)
    findings = [
        *find_memory_leaks(rows),
        *find_memory_problems(rows),
        *find_loss_anomalies(rows),
    ]
    if not figures.is_too_short:
        findings += find_data_waits(sample.rows, seconds)
        findings += find_checkpoint_stalls(rows, seconds)
        findings += find_time_outside_spans(seconds)
        if syncs is not None:
            findings += find_stragglers(syncs, hooks)
        if hooks is not None:
            findings += find_costly_hooks(seconds, hooks)
    findings.sort(key=lambda finding: finding.weight, reverse=True)
    return Diagnosis(tuple(findings), figures)
