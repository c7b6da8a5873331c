"""Checks of all files of a run, or of a sweep and its trials: damaged and missing ones. Needs
neither Ray nor torch."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace

from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.evaluations import EVALUATIONS
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.missing_run import find_lost_metadata
from orchestrator.disk.reports import REPORTS
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor.checked_file import (
    ADVICE_FOR_REPORTS,
    ADVICE_FOR_ROWS,
    NO_FILE,
    CheckedFile,
    get_advice,
)
from orchestrator.doctor.checkpoint_checks import check_checkpoints
from orchestrator.doctor.file_checks import check_run_file, read_intact_metadata
from orchestrator.doctor.missing_content import (
    find_missing_files,
    find_missing_reports,
    find_missing_rows,
)
from orchestrator.errors import HookyardError
from orchestrator.storage import Storage
from orchestrator.units import number_epoch

_TRIALS = "trials/"
_RUNS = (_TRIALS, f"{EVALUATIONS}/")
"""Folders that contain runs."""
_CHECKED_ELSEWHERE = (*_RUNS, f"{CLAIMS}/", "checkpoints/")


def check_files(folder: RunFolder) -> Iterator[CheckedFile]:
    """Check the files of a run or sweep, with trials and evaluations, and find missing ones; raises
    StorageError."""
    return _check_run(folder, "")


def _check_run(folder: RunFolder, prefix: str) -> Iterator[CheckedFile]:
    """Check the files of a run and of the runs in it; `prefix` is its path in the outermost one."""
    paths = folder.storage.tree()
    for result in _check_own_files(folder, paths):
        yield replace(result, file=f"{prefix}{result.file}")

    checkpoints = _find_checkpoints(folder, paths)
    is_inside = checkpoints.path == (folder.storage / "checkpoints").path
    place = f"{prefix}checkpoints" if is_inside else checkpoints.path
    for result in check_checkpoints(checkpoints):
        yield replace(result, file=f"{place}/{result.file}")

    for name in _list_inner_runs(paths):
        run = RunFolder(folder.storage, name)
        # A run that was killed while it was created has no files.
        if run.exists() or find_lost_metadata(run.storage):
            yield from _check_run(run, f"{prefix}{name}/")


def _check_own_files(folder: RunFolder, paths: Collection[str]) -> Iterator[CheckedFile]:
    """Check the files of a run except its checkpoints, and find missing ones."""
    own = [path for path in paths if not path.startswith(_CHECKED_ELSEWHERE)]
    results = [check_run_file(folder, path) for path in own]
    yield from results

    has_intact_files = not any(result.is_damaged_or_missing for result in results)
    yield from _find_missing_content(folder, has_intact_files=has_intact_files)
    for path in find_missing_files(read_intact_metadata(folder), paths):
        yield CheckedFile(path, "missing", NO_FILE, get_advice(path))


def _find_missing_content(folder: RunFolder, *, has_intact_files: bool) -> Iterator[CheckedFile]:
    """Yield results for missing rows and reports."""
    with suppress(HookyardError, FileNotFoundError):  # results for run.json and attempt.json say so
        attempts = folder.read_attempts()
        # An evaluation reports the iteration of the evaluated checkpoint.
        if not attempts or folder.read_metadata().evaluates:
            return
        # A checkpoint of another trial has that trial's reports.
        if any("/" in (attempt.checkpoint or "") for attempt in attempts[1:]):
            return

        reports = folder.read_reports()
        if has_intact_files:
            missing = find_missing_rows(folder, attempts, reports)
            if missing:
                yield CheckedFile("stats/", "missing", "; ".join(missing), ADVICE_FOR_ROWS)
        epochs = find_missing_reports(attempts, reports)
        if epochs:
            what = f"no report of epoch {', '.join(str(number_epoch(epoch)) for epoch in epochs)}"
            yield CheckedFile(REPORTS, "missing", what, ADVICE_FOR_REPORTS)


def _find_checkpoints(folder: RunFolder, paths: Collection[str]) -> Storage:
    """Return the folder of a run's checkpoints. The `out_dir` of a sweep is that of its trials."""
    is_sweep = any(path.startswith(_TRIALS) for path in paths)
    if not is_sweep:
        with suppress(HookyardError):  # the result for experiment.yaml reports it
            return find_checkpoint_folder(folder)
    return folder.storage / "checkpoints"


def _list_inner_runs(paths: Collection[str]) -> list[str]:
    """Return the folders of trials and evaluations, sorted."""
    inner = [path.split("/") for path in paths if path.startswith(_RUNS)]
    return sorted({f"{parts[0]}/{parts[1]}" for parts in inner if len(parts) > 2})
