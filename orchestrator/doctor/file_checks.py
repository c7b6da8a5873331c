"""Checks of single files of a run. Needs neither Ray nor torch."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from orchestrator.disk.attempts import Attempt
from orchestrator.disk.checkpoints.index import INDEX, check_index
from orchestrator.disk.checkpoints.manifest import MANIFEST, check_manifest
from orchestrator.disk.info import INFO, check_info
from orchestrator.disk.media import INDEX as MEDIA
from orchestrator.disk.metadata import RunMetadata
from orchestrator.disk.reports import REPORTS, check_report
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.statuses import COMPLETE
from orchestrator.doctor.checked_file import CheckedFile, FileStatus, get_advice, run_check
from orchestrator.errors import HookyardError
from orchestrator.experiment.yaml.reader import parse_yaml
from orchestrator.experiment.yaml.source import ExperimentSource
from orchestrator.storage import Storage
from orchestrator.storage.json_files import parse_file
from orchestrator.storage.json_lines import parse_lines
from orchestrator.storage.omissions import log_omission
from orchestrator.storage.validation import check_mapping
from orchestrator.units import format_count


def check_run_file(folder: RunFolder, path: str) -> CheckedFile:
    """Check a file of a run that is not in a checkpoint."""
    for patterns, check in _CHECKS.items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            return run_check(partial(check, folder, path), path, get_advice(path))
    return CheckedFile(path, "unknown")


def read_json(storage: Storage, path: str) -> Any:
    """Read and check a JSON file of a known name."""
    check = _JSON[path.rpartition("/")[2]]
    return check(parse_file(storage.read(path), path))


def check_json(storage: Storage, path: str) -> FileStatus:
    """Check that a JSON file of a known name can be read; may raise any error of its reader."""
    read_json(storage, path)
    return "readable"


def read_intact_metadata(folder: RunFolder) -> RunMetadata | None:
    """Return the metadata of a run; None if they are damaged, as the result for `run.json` says."""
    with suppress(HookyardError):
        return folder.read_metadata()
    return None


def _check_json(folder: RunFolder, path: str) -> FileStatus:
    return check_json(folder.storage, path)


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


def _check_lines(folder: RunFolder, path: str) -> FileStatus:
    parse_lines(folder.storage.read(path), path, check_mapping)
    return "intact"


def _check_reports(folder: RunFolder, path: str) -> FileStatus:
    reports = parse_lines(folder.storage.read(path), path, check_report)
    run = read_intact_metadata(folder)
    if run and run.status in COMPLETE and len(reports) != (run.reports or 0):
        count = format_count(len(reports), "report")
        log_omission(path, f"it has {count}, and the run has written {run.reports}")
    return "intact"


def _check_rows(folder: RunFolder, path: str) -> FileStatus:
    if path.endswith(".parquet"):
        return _check_parquet(folder, path)

    from orchestrator.disk.rows.file_format import read_stream

    stream = read_stream(folder.storage.read(path), path)
    if stream.is_cut_short:
        log_omission(path, f"it was cut short: the rows after byte {stream.end} are missing")
    return "readable"


def _check_parquet(folder: RunFolder, path: str) -> FileStatus:
    from orchestrator.disk.rows.recorded_files import open_parquet

    with open_parquet(folder.storage, path) as parquet:
        for group in range(parquet.num_row_groups):
            parquet.read_row_group(group)
    return "intact"


_JSON: Mapping[str, Callable[[Any], Any]] = {
    "run.json": RunMetadata.read,
    "source.json": ExperimentSource.from_record,
    "attempt.json": Attempt.read,
    INFO: check_info,
    INDEX: check_index,
    MANIFEST: check_manifest,
}
"""Checks of the content of JSON files."""

_CHECKS: Mapping[tuple[str, ...], Callable[[RunFolder, str], FileStatus]] = {
    ("run.json", "source.json", INFO, "stats/*/attempt.json"): _check_json,
    ("experiment.yaml",): _check_experiment,
    (REPORTS,): _check_reports,
    (MEDIA, "population.jsonl", "trials.jsonl"): _check_lines,
    ("stats.parquet", "hooks.parquet", "stats/*.arrow", "stats/*.parquet"): _check_rows,
}
"""Checks of files by patterns of their paths in the run."""
