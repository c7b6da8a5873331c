"""`hookyard doctor RUN [--against OTHER]`, `hookyard doctor RUN --files`, `hookyard doctor [--address ADDR] [--storage
URL]`"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import run_folders
from orchestrator.cli.errors import FAILED
from orchestrator.cli.options import Address, AsJson, StorageFlag
from orchestrator.cli.output import echo, print_json, print_table
from orchestrator.errors import UsageError
from orchestrator.terminal.printable import printable_data, printable_line

if TYPE_CHECKING:
    from orchestrator.cluster.preflight import Preflight
    from orchestrator.runs.integrity import CheckedFile
    from orchestrator.runs.result import Run
    from orchestrator.stats.insight import Diagnosis

_IN_WORDS = {
    "damaged": "damaged",
    "missing": "missing",
    "whole": "whole by their checksums",
    "readable": "that carry none and can be read",
    "unknown": "of hooks or others, which are not looked into",
}


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The folder of a run or a sweep; without one, this machine or a cluster is looked at.",
            autocompletion=run_folders,
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="RUN", help="A run to compare its speed with.")
    ] = None,
    files: Annotated[
        bool,
        typer.Option("--files", help="Compare each file of a run or a sweep with its checksum: what can be trusted."),
    ] = False,
    address: Address = None,
    storage: StorageFlag = "runs",
    as_json: AsJson = False,
) -> None:
    """Says what a run's tables tell (slow ranks, waiting for data, costly hooks, growing memory), whether its files are
    whole, or whether nodes are fit for one."""
    if run is None and against is not None:
        raise UsageError("--against compares a run with another: name both")
    if files and (run is None or against is not None):
        raise UsageError("--files looks at the files of one run or sweep: name it, without --against")
    if files and run is not None:
        return _check_files(run, as_json)
    return _look(address, storage, as_json) if run is None else _diagnose(run, against, as_json)


def _check_files(run: str, as_json: bool) -> None:
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.runs.integrity import check_files

    folder = RunFolder(run)
    if not folder.storage.names():
        RunFolder.open(run)
    files = list(check_files(folder))
    wrong = [one for one in files if one.is_wrong]
    if as_json:
        print_json({"path": str(folder), "whole": not wrong, "files": [asdict(one) for one in files]})
    else:
        _print_files(printable_line(str(folder)), *printable_data((files, wrong)))
    if wrong:
        raise typer.Exit(FAILED)


def _print_files(path: str, files: Sequence[CheckedFile], wrong: Sequence[CheckedFile]) -> None:
    """A line for each file that is wrong, and one for the others of each kind of folder."""
    others = Counter(
        (re.sub("[0-9]+", "*", one.file.rpartition("/")[0]), one.status) for one in files if not one.is_wrong
    )
    rows = [
        (f"{place}/" if place else "./", status, f"{count} file{'s' if count > 1 else ''}")
        for (place, status), count in others.items()
    ]
    print_table(("file", "status", "what"), [*rows, *((one.file, one.status, one.what) for one in wrong)])
    for advice in dict.fromkeys(one.advice for one in wrong):
        named = [one.file for one in wrong if one.advice == advice]
        echo(f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}: {advice}")
    counts = Counter(str(one.status) for one in files)
    echo(f"{path}: {', '.join(f'{counts[status]} {word}' for status, word in _IN_WORDS.items() if counts[status])}")


def _diagnose(run: str, against: str | None, as_json: bool) -> None:
    from orchestrator.records.run_folder import RunFolder
    from orchestrator.runs.result import open_run

    if against is None and RunFolder.open(run).metadata().sweep:
        return _diagnose_sweep(run, as_json)
    opened, other = open_run(run), open_run(against) if against else None
    diagnosis = _diagnosis(opened, other, against or "")
    if not as_json:
        return _print(printable_line(opened.path), printable_data(diagnosis))
    return print_json(
        {
            "path": opened.path,
            "healthy": diagnosis.healthy,
            "signs": diagnosis.signs,
            "findings": [asdict(finding) for finding in diagnosis.findings],
        }
    )


def _diagnosis(run: Run, other: Run | None = None, name: str = "") -> Diagnosis:
    from orchestrator.stats.insight import diagnose, failure

    ending = failure(run.status, run.error)
    return diagnose(run.rows(), run.hook_costs, None if other is None else other.rows(), name, ending).of_run(run.path)


def _diagnose_sweep(path: str, as_json: bool) -> None:
    """Print the gravest finding of each trial."""
    from orchestrator.errors import DamagedFile
    from orchestrator.sweeps.results.result import open_sweep

    trials = []
    for run in open_sweep(path).runs:
        try:
            diagnosis = _diagnosis(run)
            kinds = [finding.kind for finding in diagnosis.findings]
            what = diagnosis.findings[0].sentence if kinds else str(diagnosis)
            trials.append({"trial": run.name, "status": run.status, "findings": kinds, "gravest": what})
        except DamagedFile as error:
            trials.append({"trial": run.name, "status": "damaged", "findings": ["damage"], "gravest": str(error)})
    if as_json:
        return print_json({"path": path, "trials": trials})
    rows = [(one["trial"], one["status"], ", ".join(one["findings"]) or "-", one["gravest"]) for one in trials]
    print_table(("trial", "status", "found", "gravest"), rows)
    return echo(f"All of a trial: hookyard doctor {path}/trials/{trials[0]['trial']}" if trials else "no trial yet")


def _print(path: str, diagnosis: Diagnosis) -> None:
    if not diagnosis.findings:
        echo(f"{path} {'looks healthy' if diagnosis.healthy else 'says too little'}: {diagnosis}")
        return
    echo(f"{path}: {diagnosis}")
    for number, finding in enumerate(diagnosis.findings, start=1):
        echo(f"\n{number}. {finding.kind}: {finding.sentence}")
        echo(f"   see: {finding.query}")
        echo(f"   try: {finding.advice}")


def _look(address: str | None, storage: str, as_json: bool) -> None:
    from orchestrator.cluster.preflight import check_cluster, check_this_machine
    from orchestrator.engines.ray_environment import Ray, chosen_address

    if chosen_address(address) is None:
        looked = check_this_machine(storage)
    else:
        with Ray(address) as ray:
            looked = check_cluster(ray, storage)
    if as_json:
        print_json(asdict(looked))
    else:
        _print_nodes(looked)
    if looked.errors:
        raise typer.Exit(FAILED)


def _print_nodes(looked: Preflight) -> None:
    rows = []
    for node in looked.nodes:
        if node.facts is None:
            rows.append((node.name, *["-"] * 10))
            continue
        facts, error_ms = node.facts, node.clock_error_s * 1000
        shared = facts.shared_memory_free_bytes
        rows.append(
            (
                node.name,
                *facts.versions.values(),
                f"{node.offered_gpus:g} of {facts.gpus}",
                f"{facts.disk_free_bytes / 2**30:.0f} GiB",
                "-" if shared is None else f"{shared / 2**30:.1f} GiB",
                f"{node.clock_offset_s * 1000:+.0f} ms (within {error_ms:.0f})",
                "no" if node.storage else "ok",
                "-" if node.neighbour is None else "no" if node.connection else "ok",
            )
        )
    columns = ("node", *looked.driver.versions, "gpus", "disk free", "shared memory", "clock", "storage", "next node")
    print_table(columns, rows)
    for finding in looked.findings:
        echo(str(finding))
    number = f"{len(looked.nodes)} node{'s' if len(looked.nodes) > 1 else ''}"
    echo(
        f"{number}, storage {looked.storage}: {'not fit' if looked.errors else 'fit'}; looked at in"
        f" {looked.seconds:.1f} s",
        err=True,
    )
