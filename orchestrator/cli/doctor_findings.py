"""`hookyard doctor RUN`: the findings on a run, or the most severe one on each trial of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.cli.stored_run import open_run_or_sweep
from orchestrator.errors import DamagedFile
from orchestrator.terminal.printable import escape_data, escape_line

if TYPE_CHECKING:
    from orchestrator.doctor import Diagnosis
    from orchestrator.runs.result import Run
    from orchestrator.sweeps.results.result import Sweep


@dataclass(frozen=True)
class _DiagnosedTrial:
    """The findings on a trial of a sweep. `--json` prints the fields."""

    trial: str
    status: str
    findings: Sequence[str]
    """Their kinds, the most severe first."""
    worst: str
    """A sentence on the most severe one, or on the trial if there is none."""


def print_findings(path: str, as_json: bool) -> None:
    """Diagnose a run, or each trial of a sweep, and print the findings."""
    from orchestrator.runs.result import Run

    opened = open_run_or_sweep(path)
    if isinstance(opened, Run):
        _diagnose_run(opened, as_json)
    else:
        _diagnose_sweep(opened, as_json)


def _diagnose_run(run: Run, as_json: bool) -> None:
    from orchestrator.doctor import diagnose_run

    diagnosis = diagnose_run(run.folder, run.rows(), run.hook_costs)
    path = str(run.folder)
    if not as_json:
        return _print_diagnosis(escape_line(path), escape_data(diagnosis))
    return print_json(
        {
            "path": path,
            "healthy": diagnosis.is_healthy,
            "signs": diagnosis.figures.to_dict(),
            "findings": diagnosis.findings,
        }
    )


def _print_diagnosis(path: str, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        return echo(f"{path}: {diagnosis.verdict}. {diagnosis}")

    echo(f"{path}: {diagnosis}")
    for number, finding in enumerate(diagnosis.findings, start=1):
        echo(f"\n{number}. {finding.kind}: {finding.sentence}")
        echo(f"   see: {finding.query}")
        echo(f"   try: {finding.advice}")
    return None


def _diagnose_sweep(sweep: Sweep, as_json: bool) -> None:
    trials = [_diagnose_trial(run) for run in sweep.runs]
    if as_json:
        return print_json({"path": str(sweep.folder), "trials": trials})
    if not trials:
        return echo("no trials yet")

    rows = []
    for trial in trials:
        kinds = ", ".join(dict.fromkeys(trial.findings)) or "-"
        rows.append((trial.trial, trial.status, kinds, trial.worst))
    print_table(("trial", "status", "findings", "most severe"), rows)
    first = shlex.quote(f"{sweep.folder}/trials/{trials[0].trial}")
    return echo(f"For all findings of a trial: hookyard doctor {first}")


def _diagnose_trial(run: Run) -> _DiagnosedTrial:
    from orchestrator.doctor import diagnose_run

    try:
        diagnosis = diagnose_run(run.folder, run.rows(), run.hook_costs)
    except DamagedFile as error:
        return _DiagnosedTrial(run.name, "damaged", ["damage"], str(error))
    kinds = [finding.kind for finding in diagnosis.findings]
    worst = diagnosis.findings[0].sentence if diagnosis.findings else str(diagnosis)
    return _DiagnosedTrial(run.name, run.status, kinds, worst)
