"""Checks of all files of a run, or of a sweep and its trials: damaged and missing ones. Needs
neither Ray nor torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.checkpoints.index import INDEX, check_index
from orchestrator.disk.checkpoints.manifest import MANIFEST, check_file, check_manifest
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.media import INDEX as MEDIA
from orchestrator.disk.metadata import COMPLETE, RunMetadata
from orchestrator.disk.reports import REPORTS, check_report
from orchestrator.disk.run_folder import ADVICE, EVALUATIONS, RunFolder
from orchestrator.doctor.missing_content import find_missing_reports, find_missing_rows
from orchestrator.errors import HookyardError
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import (
    check_mapping,
    collecting_omissions,
    log_omission,
    parse_file,
    parse_lines,
)
from orchestrator.units import number_epoch

FileStatus = Literal["intact", "readable", "unknown", "damaged", "missing"]
"""`intact`: its checksums match. `readable`: valid, without checksums. `unknown`: file of a hook or
the user."""
_RUNS = ("trials/", f"{EVALUATIONS}/")
"""Folders that contain runs."""
_ROWS = "The rows of this file are lost unless you restore a copy; all other rows, reports and checkpoints are intact"
_CHECKPOINT = (
    "`resume` uses the newest intact checkpoint instead; restore a copy, or remove its folder"
)
_COPY = "Restore it from a backup, or continue without it: nothing depends on it"
_LABELS = "Delete it: checkpoints keep their names, and lose labels such as best"
_ADVICE = {
    **ADVICE,
    REPORTS: "Restore the file from a backup to recover its reports",
    "stats.parquet": _ROWS,
}
_MISSING = "the file does not exist"
_JSON: Mapping[str, Callable[[Any], Any]] = {
    "run.json": RunMetadata.read,
    "source.json": ExperimentSource.from_record,
    "attempt.json": Attempt.read,
    "info.json": check_mapping,
    INDEX: check_index,
    MANIFEST: check_manifest,
}


@dataclass(frozen=True)
class CheckedFile:
    """Result of the check of one file."""

    file: str
    """Path in the run's folder, or the full path of a file elsewhere."""
    status: FileStatus
    what: str = ""
    """The problem, and its location in the file."""
    advice: str = ""

    @property
    def is_damaged_or_missing(self) -> bool:
        return self.status in ("damaged", "missing")


def check_files(folder: RunFolder) -> Iterator[CheckedFile]:
    """Check the files of a run or sweep, with trials and evaluations, and find missing ones; raises
    StorageError."""
    storage = folder.storage
    paths = [*storage.tree()]
    excluded = (*_RUNS, f"{CLAIMS}/", "checkpoints/")

    results = [_check(folder, path) for path in paths if not path.startswith(excluded)]
    yield from results
    has_intact_files = not any(result.is_damaged_or_missing for result in results)
    yield from _find_missing_content(folder, has_intact_files=has_intact_files)
    for path in _find_missing_files(folder, paths):
        advice = _ADVICE.get(path.rpartition("/")[2], _COPY)
        yield CheckedFile(path, "missing", _MISSING, advice)

    checkpoints = storage / "checkpoints"
    with suppress(HookyardError):  # the result for experiment.yaml reports it
        checkpoints = find_checkpoint_folder(folder)
    is_inside = checkpoints.path == f"{storage.path}/checkpoints"
    prefix = "checkpoints" if is_inside else str(checkpoints)
    for result in _check_checkpoints(checkpoints):
        yield replace(result, file=f"{prefix}/{result.file}")

    for name in _list_inner_runs(paths):
        run = RunFolder(storage, name)
        # A run that was killed while it was created has no files.
        if not run.exists() and not run.find_lost_metadata():
            continue
        for result in check_files(run):
            is_outside = result.file.startswith(str(checkpoints))
            yield result if is_outside else replace(result, file=f"{name}/{result.file}")


def _list_inner_runs(paths: Sequence[str]) -> list[str]:
    """Return the folders of trials and evaluations, sorted."""
    inner = [path.split("/") for path in paths if path.startswith(_RUNS)]
    return sorted({f"{parts[0]}/{parts[1]}" for parts in inner if len(parts) > 2})


# One file


def _check(folder: RunFolder, path: str) -> CheckedFile:
    for patterns, check, advice in _CHECKS:
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            advice = _ADVICE.get(path.rpartition("/")[2], advice)
            return _run_check(check, folder, path, advice)
    return CheckedFile(path, "unknown")


Check = Callable[[RunFolder, str], FileStatus]
"""Check of a file. It raises or logs damage."""


def _run_check(check: Check, folder: RunFolder, path: str, advice: str) -> CheckedFile:
    try:
        with collecting_omissions() as omissions:
            status = check(folder, path)
    except FileNotFoundError:
        return CheckedFile(path, "missing", _MISSING, advice)
    except Exception as error:  # of any reader
        what = getattr(error, "what", str(error))
        return CheckedFile(path, "damaged", what, getattr(error, "advice", advice))

    if omissions:
        return CheckedFile(path, "damaged", "; ".join(omissions), advice)
    return CheckedFile(path, status)


def _check_experiment(folder: RunFolder, path: str) -> FileStatus:
    text = folder.read_experiment_text()
    document = parse_yaml(text, path)
    if document.problems:
        raise ValueError(str(document.problems[0]))
    if not text.endswith("\n"):
        raise ValueError("it was cut short: its last line has no end")
    if "task" not in folder.read_experiment():
        raise ValueError("it has no `task`")
    return "readable"


def _check_json(folder: RunFolder, path: str) -> FileStatus:
    _read_json(folder.storage, path)
    return "readable"


def _read_json(storage: Storage, path: str) -> Any:
    check = _JSON[path.rpartition("/")[2]]
    return check(parse_file(storage.read(path), path))


def _check_lines(folder: RunFolder, path: str) -> FileStatus:
    check = check_report if path == REPORTS else check_mapping
    lines = parse_lines(folder.storage.read(path), path, check)
    run = _read_metadata(folder)
    if path == REPORTS and run and run.status in COMPLETE and len(lines) != (run.reports or 0):
        log_omission(path, f"it has {len(lines)} reports, and {run.reports} were written")
    return "intact"


def _check_rows(folder: RunFolder, path: str) -> FileStatus:
    from orchestrator.disk.rows.file_format import read_stream
    from orchestrator.disk.rows.recorded_files import open_parquet

    if path.endswith(".arrow"):
        stream = read_stream(folder.storage.read(path), path)
        if stream.is_cut_short:
            log_omission(path, f"it was cut short: the rows after byte {stream.end} are missing")
        return "readable"

    with open_parquet(folder.storage, path) as parquet:
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group)
    return "intact"


_CHECKS: Sequence[tuple[Sequence[str], Check, str]] = (
    (("run.json", "source.json", "info.json", "stats/*/attempt.json"), _check_json, _COPY),
    (("experiment.yaml",), _check_experiment, _COPY),
    ((REPORTS, MEDIA, "population.jsonl", "trials.jsonl"), _check_lines, _COPY),
    (("stats.parquet", "hooks.parquet", "stats/*.arrow", "stats/*.parquet"), _check_rows, _ROWS),
)
"""Patterns of paths with their check, and the advice for a damaged file that has none of its
own."""


# Missing files and content


def _read_metadata(folder: RunFolder) -> RunMetadata | None:
    with suppress(HookyardError):  # the result for run.json says so
        return folder.read_metadata()
    return None


def _find_missing_files(folder: RunFolder, paths: Sequence[str]) -> Iterator[str]:
    """Yield the missing files that a run of this status must have."""
    run = _read_metadata(folder)
    count = (run and run.attempts) or 0
    recorded = [path for path in paths if path.startswith("stats/attempt=") and "/rank=" in path]
    attempts = {path.split("/")[1] for path in recorded}
    attempts |= {f"attempt={number}" for number in range(count)}

    required = ["run.json", "experiment.yaml"]
    required += [f"stats/{name}/attempt.json" for name in sorted(attempts)]
    if run and run.sweep is None and run.status in COMPLETE and count:
        if run.reports:
            required.append(REPORTS)
        rows = [path for path in paths if path.startswith("stats")]
        if not any(path.endswith((".parquet", ".arrow")) for path in rows):
            required.append("stats.parquet")
    yield from (path for path in required if path not in paths)


def _find_missing_content(folder: RunFolder, *, has_intact_files: bool) -> Iterator[CheckedFile]:
    """Yield results for missing rows and reports: a file or line that is gone leaves no trace."""
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
                yield CheckedFile("stats/", "missing", "; ".join(missing), _ROWS)
        epochs = find_missing_reports(attempts, reports)
        if epochs:
            what = f"no report of epoch {', '.join(str(number_epoch(epoch)) for epoch in epochs)}"
            yield CheckedFile(REPORTS, "missing", what, _ADVICE[REPORTS])


# Checkpoints


def _check_checkpoints(storage: Storage) -> Iterator[CheckedFile]:
    """Check the files of every checkpoint against its manifest, and list all other files."""
    folder = RunFolder(storage)
    paths = [*storage.tree()]
    names = sorted({path.split("/")[0] for path in paths if "/" in path})
    known = {INDEX}

    if INDEX in paths:
        yield _run_check(_check_json, folder, INDEX, _LABELS)
        for name in sorted(_list_indexed(storage) - {*names}):
            what = f"{INDEX} names it"
            yield CheckedFile(f"{name}/", "missing", what, "Restore it from a backup")
    elif any(f"{name}/{MANIFEST}" in paths for name in names):
        yield CheckedFile(INDEX, "missing", "it is missing: labels such as best are lost", _COPY)

    for name in names:
        path = f"{name}/{MANIFEST}"
        if path in paths:
            known.add(path)
            yield _run_check(_check_json, folder, path, _CHECKPOINT)
            for file, entry in _read_entries(storage, path).items():
                known.add(f"{name}/{file}")
                if f"{name}/{file}" in paths:
                    yield _check_checkpoint_file(storage, name, file, entry)
                else:
                    yield CheckedFile(f"{name}/{file}", "missing", _MISSING, _CHECKPOINT)
        elif f"{name}/model.pt" in paths and not name.startswith(".") and storage.local:
            yield CheckedFile(path, "missing", _MISSING, _CHECKPOINT)
    yield from (CheckedFile(path, "unknown") for path in paths if path not in known)


def _check_checkpoint_file(
    storage: Storage, name: str, file: str, entry: Mapping[str, Any]
) -> CheckedFile:
    try:
        problem = check_file(storage, name, file, entry)
    except HookyardError as error:
        problem = str(error)
    if problem is None:
        return CheckedFile(f"{name}/{file}", "intact")
    return CheckedFile(f"{name}/{file}", "damaged", problem, _CHECKPOINT)


def _list_indexed(storage: Storage) -> set[str]:
    """Return the checkpoints that the index names; none if it is damaged."""
    with suppress(ValueError, HookyardError):
        index = _read_json(storage, INDEX)
        return {*index["labels"].values()}.union(*index["owners"].values())
    return set()


def _read_entries(storage: Storage, path: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the files that a manifest names; none if it is damaged."""
    with suppress(ValueError, HookyardError):
        files: Mapping[str, Mapping[str, Any]] = _read_json(storage, path)["files"]
        return files
    return {}
