"""Checks the checksums of all files of a run, or of a sweep and its trials. Needs neither Ray nor
torch."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

from hooks.position import Stage
from orchestrator.disk.checkpoints.index import INDEX, check_index
from orchestrator.disk.checkpoints.manifest import MANIFEST, check_file, check_manifest
from orchestrator.disk.lease import FOLDER as CLAIMS
from orchestrator.disk.metadata import REPORTS, Attempt, RunMetadata, check_report
from orchestrator.disk.run_folder import ADVICE, COMPLETE, EVALUATIONS, RunFolder
from orchestrator.errors import HookyardError
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import (
    check_mapping,
    collecting_omissions,
    has_valid_seal,
    log_omission,
    parse_file,
    parse_lines,
)

FileStatus = Literal["intact", "readable", "unknown", "damaged", "missing"]
"""`intact`: the checksum matches. `readable`: valid, without checksum. `unknown`: file of a hook or
the user."""
_RUNS = ("trials/", f"{EVALUATIONS}/")
"""Folders that contain runs."""
_ROWS = "The rows of this file are lost unless you restore a copy; all other rows, reports and checkpoints are intact"
_CHECKPOINT = (
    "`resume` uses the newest intact checkpoint instead; restore a copy, or remove its folder"
)
_COPY = "Restore it from a backup, or continue without it: nothing depends on it"
_UNREPORTED = (Stage.TRAINED, Stage.VALIDATED)
_ADVICE = {
    **ADVICE,
    REPORTS: "Restore the file from a backup to recover its reports",
    "stats.parquet": _ROWS,
}
_JSON: dict[str, Callable[[Any], Any]] = {
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
    yield from _find_lost_content(folder, has_intact_files=has_intact_files)
    for path in _find_missing_files(folder, paths):
        yield CheckedFile(
            path, "missing", "the file does not exist", _ADVICE.get(path.rpartition("/")[2], _COPY)
        )
    checkpoints = storage / "checkpoints"
    with suppress(HookyardError):  # the result for experiment.yaml reports it
        checkpoints = folder.find_checkpoint_folder()
    prefix = (
        "checkpoints" if checkpoints.path == f"{storage.path}/checkpoints" else str(checkpoints)
    )
    yield from (
        replace(result, file=f"{prefix}/{result.file}")
        for result in _check_checkpoints(checkpoints)
    )
    inner = {
        tuple(path.split("/")[:2])
        for path in paths
        if path.startswith(_RUNS) and path.count("/") > 1
    }
    for parent, name in sorted(inner):
        run = RunFolder(storage / parent, name)
        if (
            run.exists() or run.find_lost_metadata()
        ):  # a run that was killed while it was created has no files
            for result in check_files(run):
                is_outside = result.file.startswith(str(checkpoints))
                yield (
                    result if is_outside else replace(result, file=f"{parent}/{name}/{result.file}")
                )


def _check(folder: RunFolder, path: str) -> CheckedFile:
    name = path.rpartition("/")[2]
    for patterns, check, advice in _CHECKS:
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return _run_check(path, partial(check, folder, path), _ADVICE.get(name, advice))
    return CheckedFile(path, "unknown")


def _run_check(path: str, check: Callable[[], bool], advice: str) -> CheckedFile:
    """Run a check. It returns True if the file has a checksum, and raises or logs damage."""
    try:
        with collecting_omissions() as omissions:
            has_checksum = check()
    except FileNotFoundError:
        return CheckedFile(path, "missing", "the file does not exist", advice)
    except Exception as error:  # of any reader
        return CheckedFile(
            path, "damaged", getattr(error, "what", str(error)), getattr(error, "advice", advice)
        )
    if omissions:
        return CheckedFile(path, "damaged", "; ".join(omissions), advice)
    return CheckedFile(path, "intact" if has_checksum else "readable")


def _check_experiment(folder: RunFolder, path: str) -> bool:
    document = parse_yaml(folder.read_experiment_text(), path)
    if document.problems:
        raise ValueError(str(document.problems[0]))
    if "task" not in folder.read_experiment():
        raise ValueError("it has no `task`")
    return False


def _check_json(storage: Storage, path: str) -> bool:
    data = storage.read(path)
    _JSON[path.rpartition("/")[2]](parse_file(data, path))
    if has_valid_seal(data) is False:
        raise ValueError("it was changed after it was written: its checksum does not match")
    return has_valid_seal(data) is not None


def _check_lines(folder: RunFolder, path: str) -> bool:
    data = folder.storage.read(path)
    lines = parse_lines(data, path, check_report if path == "metrics.jsonl" else check_mapping)
    run = _read_metadata(folder)
    if (
        path == "metrics.jsonl"
        and run
        and run.status in COMPLETE
        and len(lines) != (run.reports or 0)
    ):
        log_omission(path, f"it has {len(lines)} reports, and {run.reports} were written")
    return bool(lines) and all(has_valid_seal(line) for line in data.splitlines() if line.strip())


def _check_rows(folder: RunFolder, path: str) -> bool:
    from orchestrator.disk.rows.checksums import read_stream, verify_parquet

    if path.endswith(".parquet"):
        with folder.storage.open(path) as file:
            return verify_parquet(file, path)
    return read_stream(folder.storage.read(path), "").schema is not None


_CHECKS: Sequence[tuple[Sequence[str], Callable[[RunFolder, str], bool], str]] = (
    (
        ("run.json", "source.json", "info.json", "stats/*/attempt.json"),
        lambda folder, path: _check_json(folder.storage, path),
        _COPY,
    ),
    (("experiment.yaml",), _check_experiment, _COPY),
    ((REPORTS, "population.jsonl", "trials.jsonl"), _check_lines, _COPY),
    (("stats.parquet", "hooks.parquet", "stats/*.arrow", "stats/*.parquet"), _check_rows, _ROWS),
)
"""Patterns of paths with their check, and the advice for a damaged file that has none of its
own."""


def _read_metadata(folder: RunFolder) -> RunMetadata | None:
    with suppress(HookyardError):  # the result for run.json says so
        return folder.read_metadata()
    return None


def _find_missing_files(folder: RunFolder, paths: Sequence[str]) -> Iterator[str]:
    """Yield the missing files that a run of this status must have."""
    run = _read_metadata(folder)
    count = (run and run.attempts) or 0
    attempts = {
        path.split("/")[1]
        for path in paths
        if path.startswith("stats/attempt=") and "/rank=" in path
    }
    attempts |= {f"attempt={number}" for number in range(count)}
    required = [
        "run.json",
        "experiment.yaml",
        *(f"stats/{name}/attempt.json" for name in sorted(attempts)),
    ]
    if run and run.sweep is None and run.status in COMPLETE and count:
        has_rows = any(
            path.endswith((".parquet", ".arrow")) for path in paths if path.startswith("stats")
        )
        required += [*([REPORTS] if run.reports else ()), *(() if has_rows else ["stats.parquet"])]
    yield from (path for path in required if path not in paths)


def _find_lost_content(folder: RunFolder, *, has_intact_files: bool) -> Iterator[CheckedFile]:
    """Yield results for missing rows and reports. A file or line that is gone leaves no other
    trace."""
    with suppress(
        HookyardError, FileNotFoundError
    ):  # the results for run.json and attempt.json say so
        attempts = folder.read_attempts()
        # An evaluation reports the iteration of the evaluated checkpoint.
        if not attempts or folder.read_metadata().evaluates:
            return
        if any(
            "/" in (attempt.checkpoint or "") for attempt in attempts[1:]
        ):  # of another trial, with its reports
            return
        reports = folder.read_reports()
        if has_intact_files and (
            missing := "; ".join(_find_ranks_with_missing_rows(folder, attempts, reports))
        ):
            yield CheckedFile("stats/", "missing", missing, _ROWS)
        first, *ends = (
            attempt.position.epoch - (attempt.position.stage in _UNREPORTED) for attempt in attempts
        )
        unreported = {*range(first, max(ends, default=0))} - {
            report.get("epoch") for report in reports
        }
        # A custom loop, which has no order, may report at any time.
        if unreported and all(attempt.order for attempt in attempts):
            epochs = ", ".join(map(str, sorted(unreported)))
            yield CheckedFile(REPORTS, "missing", f"no report of epoch {epochs}", _ADVICE[REPORTS])


def _find_ranks_with_missing_rows(
    folder: RunFolder, attempts: Sequence[Attempt], reports: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Describe each rank with fewer training rows than iterations up to the last report or restored
    checkpoint.

    Only rank 0 is known to have all iterations of a custom loop, and of the validation up to a
    checkpoint.
    """
    from orchestrator.disk.rows.valid_rows import open_valid_rows
    from orchestrator.tables.query import Rows

    last, starts = attempts[-1], [attempt.position.iteration for attempt in attempts]
    reported = [report["iteration"] for report in reports if report.get("attempt") == last.number]
    ends = [
        *(min(starts[number:]) for number in range(1, len(starts))),
        max([starts[-1], *filter(None, reported)]),
    ]
    required: Counter[tuple[int, str]] = Counter()
    required[0, "val"] = last.position.val_iterations - attempts[0].position.val_iterations
    for attempt, start, end in zip(attempts, starts, ends, strict=True):
        for rank in range(attempt.world_size if attempt.order else 1):
            required[rank, "train"] += max(end - start, 0)
    rows = Rows(open_valid_rows(folder.storage, attempts))
    counts = rows.aggregate({"rows": "count(*)"}, ["rank", "split_part(phase, '/', 1)"])[
        "rows"
    ].to_dict()
    for (rank, phase), number in sorted(required.items()):
        if (count := counts.get((rank, phase), 0)) < number:
            yield f"rank {rank} has {count:,} of {number:,} {phase} rows"


def _check_checkpoints(storage: Storage) -> Iterator[CheckedFile]:
    """Check the files of every checkpoint against its manifest, and list all other files."""
    paths = [*storage.tree()]
    names = sorted({path.split("/")[0] for path in paths if "/" in path})
    known = {INDEX}
    if INDEX in paths:
        advice = "Delete it: checkpoints keep their names, and lose labels such as best"
        yield _run_check(INDEX, partial(_check_json, storage, INDEX), advice)
        index = _read(storage, INDEX)
        owned = (name for names in index.get("owners", {}).values() for name in names)
        for name in sorted({*index.get("labels", {}).values(), *owned} - {*names}):
            yield CheckedFile(
                f"{name}/", "missing", f"{INDEX} names it", "Restore it from a backup"
            )
    elif any(f"{name}/{MANIFEST}" in paths for name in names):
        yield CheckedFile(INDEX, "missing", "it is missing: labels such as best are lost", _COPY)
    for name in names:
        path = f"{name}/{MANIFEST}"
        if path not in paths:
            if f"{name}/model.pt" in paths and not name.startswith(".") and storage.local:
                yield CheckedFile(path, "missing", "the file does not exist", _CHECKPOINT)
            continue
        known.add(path)
        yield _run_check(path, partial(_check_json, storage, path), _CHECKPOINT)
        for file, entry in _read(storage, path).get("files", {}).items():
            known.add(f"{name}/{file}")
            try:
                problem = check_file(storage, name, file, entry)
            except HookyardError as error:
                problem = str(error)
            status: FileStatus = "damaged" if problem else "intact"
            if problem and problem.endswith("is missing"):
                status = "missing"
            yield CheckedFile(
                f"{name}/{file}", status, problem or "", _CHECKPOINT if problem else ""
            )
    yield from (CheckedFile(path, "unknown") for path in paths if path not in known)


def _read(storage: Storage, path: str) -> dict[str, Any]:
    """Return an index or a manifest; empty if it is damaged."""
    with suppress(ValueError, HookyardError, FileNotFoundError):
        content: dict[str, Any] = _JSON[path.rpartition("/")[2]](
            parse_file(storage.read(path), path)
        )
        return content
    return {}
