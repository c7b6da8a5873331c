"""`hookyard doctor`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.errors import FAILED
from orchestrator.cli.options import Address, AsJson, StorageFlag, complete_runs
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.errors import DamagedFile, UsageError
from orchestrator.terminal.printable import escape_data, escape_line
from orchestrator.units import format_bytes, format_count

if TYPE_CHECKING:
    from orchestrator.cluster.preflight import Preflight
    from orchestrator.doctor import Diagnosis
    from orchestrator.doctor.file_checks import CheckedFile

_STATUSES = {
    "damaged": "damaged",
    "missing": "missing",
    "intact": "with correct checksums",
    "readable": "readable (no checksums)",
    "unknown": "not checked (such as log.txt and files of hooks)",
}


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run or a sweep. Without it, doctor checks this machine or a cluster.",
            autocompletion=complete_runs,
        ),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Check every file of RUN, and its checksums.")
    ] = False,
    address: Address = None,
    storage: StorageFlag = "runs",
    as_json: AsJson = False,
) -> None:
    """Find what slows a run down: slow ranks, data loading, hooks, memory.

    With --files, find damaged files. Without RUN, find nodes that are unfit for training.

    Example: hookyard doctor runs/spirals
    """
    if files and run is None:
        raise UsageError("--files checks one run or sweep: hookyard doctor RUN --files")
    if run is None:
        _check_nodes(address, storage, as_json)
    elif files:
        _check_files(run, as_json)
    else:
        _diagnose(run, as_json)


def _check_files(run: str, as_json: bool) -> None:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.doctor.integrity import check_files

    folder = RunFolder(run)
    if Path(run).is_file() or not folder.storage.names():
        RunFolder.open(run)
    checked = list(check_files(folder))
    bad_files = [file for file in checked if file.is_damaged_or_missing]
    if as_json:
        print_json({"path": str(folder), "intact": not bad_files, "files": checked})
    else:
        _print_files(escape_line(str(folder)), escape_data(checked), escape_data(bad_files))
    if bad_files:
        raise typer.Exit(FAILED)


def _print_files(
    path: str, checked: Sequence[CheckedFile], bad_files: Sequence[CheckedFile]
) -> None:
    """Print a line for each bad file, and the number of files by status."""
    if bad_files:
        print_table(
            ("file", "status", "details"),
            [(file.file, file.status, file.what) for file in bad_files],
        )
    for advice in dict.fromkeys(file.advice for file in bad_files):
        names = [file.file for file in bad_files if file.advice == advice]
        others = f" and {len(names) - 3} more" if len(names) > 3 else ""
        echo(f"{', '.join(names[:3])}{others}: {advice}")
    counts = Counter(str(file.status) for file in checked)
    parts = [f"{counts[status]} {text}" for status, text in _STATUSES.items() if counts[status]]
    echo(f"{path}: {', '.join(parts)}")


def _diagnose(run: str, as_json: bool) -> None:
    from orchestrator.disk.run_folder import RunFolder
    from orchestrator.doctor import diagnose_run
    from orchestrator.runs.result import open_run

    if RunFolder.open(run).read_metadata().sweep:
        return _diagnose_sweep(run, as_json)
    opened = open_run(run)
    diagnosis = diagnose_run(opened.folder, opened.rows(), opened.hook_costs)
    if not as_json:
        return _print_diagnosis(escape_line(str(opened.folder)), escape_data(diagnosis))
    return print_json(
        {
            "path": str(opened.folder),
            "healthy": diagnosis.is_healthy,
            "signs": diagnosis.figures.to_dict(),
            "findings": diagnosis.findings,
        }
    )


def _diagnose_sweep(path: str, as_json: bool) -> None:
    """Print the most severe finding of each trial."""
    from orchestrator.doctor import diagnose_run
    from orchestrator.sweeps.results.result import open_sweep

    trials = []
    for run in open_sweep(path).runs:
        status = run.status
        kinds = ["damage"]
        try:
            diagnosis = diagnose_run(run.folder, run.rows(), run.hook_costs)
            kinds = [finding.kind for finding in diagnosis.findings]
            worst = diagnosis.findings[0].sentence if kinds else str(diagnosis)
        except DamagedFile as error:
            status = "damaged"
            worst = str(error)
        trials.append({"trial": run.name, "status": status, "findings": kinds, "worst": worst})
    if as_json:
        return print_json({"path": path, "trials": trials})
    rows = [
        (
            trial["trial"],
            trial["status"],
            ", ".join(dict.fromkeys(trial["findings"])) or "-",
            trial["worst"],
        )
        for trial in trials
    ]
    print_table(("trial", "status", "findings", "most severe"), rows)
    if not trials:
        return echo("no trials yet")
    return echo(f"For all findings of a trial: hookyard doctor {path}/trials/{trials[0]['trial']}")


def _print_diagnosis(path: str, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        echo(
            f"{path}: {'no findings' if diagnosis.is_healthy else 'too few rows to tell'}. {diagnosis}"
        )
        return
    echo(f"{path}: {diagnosis}")
    for number, finding in enumerate(diagnosis.findings, start=1):
        echo(f"\n{number}. {finding.kind}: {finding.sentence}")
        echo(f"   see: {finding.query}")
        echo(f"   try: {finding.advice}")


def _check_nodes(address: str | None, storage: str, as_json: bool) -> None:
    from orchestrator.cluster.preflight import check
    from orchestrator.engines.ray_connection import Ray, choose_address

    if choose_address(address) is None:
        preflight = check(storage)
    else:
        with Ray(address) as ray:
            preflight = check(storage, ray)
    if as_json:
        print_json(preflight)
    else:
        _print_nodes(preflight)
    if preflight.errors:
        raise typer.Exit(FAILED)


def _print_nodes(preflight: Preflight) -> None:
    columns = ("node", *preflight.driver.versions, "gpus", "disk free", "shared memory", "storage")
    rows = []
    for node in preflight.nodes:
        if node.answers is None:
            rows.append((node.name, *["-"] * (len(columns) - 1)))
            continue
        facts = node.answers.facts
        shared = facts.shared_memory_free_bytes
        rows.append(
            (
                node.name,
                *facts.versions.values(),
                f"{node.offered_gpus:g} of {facts.gpus}",
                format_bytes(facts.disk_free_bytes),
                "-" if shared is None else format_bytes(shared),
                "failed" if node.answers.storage else "ok",
            )
        )
    print_table(columns, rows)
    for finding in preflight.findings:
        echo(str(finding))
    count = f"{format_count(len(preflight.nodes), 'node')}"
    result = "not ready" if preflight.errors else "ready"
    echo(
        f"{count} and storage {preflight.storage}: {result} (checked in {preflight.seconds:.1f} s)",
        err=True,
    )
