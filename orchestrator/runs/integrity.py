"""Which files of a run, or of a sweep and its trials, can be trusted: each is compared with the checksum that it
carries. Reads all of them, in the process that asks; needs neither Ray nor torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from orchestrator.checkpoint.index import INDEX, check_index
from orchestrator.checkpoint.manifest import MANIFEST, check_file, check_manifest
from orchestrator.config.text.reader import parse_yaml
from orchestrator.config.text.source import ExperimentSource
from orchestrator.errors import HookyardError
from orchestrator.records.lease import FOLDER as CLAIMS
from orchestrator.records.metadata import Attempt, RunMetadata
from orchestrator.records.reports import check_report
from orchestrator.records.run_folder import ADVICE, ENDED, EVALUATIONS, RunFolder
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import hearing, is_whole, left_out, mapping, parsed, whole_lines

FileStatus = Literal["whole", "readable", "unknown", "damaged", "missing"]
"""`whole`: its checksum holds. `readable`: it carries none, and reads as what it should be. `unknown`: a hook's, or
anybody's."""
_RUNS = ("trials/", f"{EVALUATIONS}/")
"""Where in a folder there are runs of their own."""
_ROWS = "What is left out is lost without a copy of the file; all other rows, reports and checkpoints stand"
_LINES = "These lines are left out; put back a copy of the file to have them again"
_CHECKPOINT = (
    "`resume` passes this checkpoint over and takes the newest that is whole; put back a copy, or remove its folder"
)
_COPY = "Put back a copy of it, or go on without: nothing depends on it"
_SUFFIXES = (".json", ".jsonl", ".yaml", ".arrow", ".parquet", ".pt", ".txt")
"""Of names that no folder has."""
_JSON: dict[str, Callable[[Any], Any]] = {
    "run.json": RunMetadata.read,
    "source.json": ExperimentSource.from_record,
    "attempt.json": Attempt.read,
    "info.json": mapping,
    INDEX: check_index,
    MANIFEST: check_manifest,
}


@dataclass(frozen=True)
class CheckedFile:
    """What is to be said of one file."""

    file: str
    """Its path in the run's folder; with all of it where it lies elsewhere."""
    status: FileStatus
    what: str = ""
    """What is wrong, and where in the file."""
    advice: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether something of the run is lost."""
        return self.status in ("damaged", "missing")


def check_files(folder: RunFolder) -> Iterator[CheckedFile]:
    """Every file of a run or a sweep, of its trials and evaluations, and those that should be there; raises
    StorageError where the storage itself stays away."""
    storage = folder.storage
    there = _files(storage)
    inside = {tuple(name.split("/")[:2]) for name in there if name.startswith(_RUNS) and name.count("/") > 1}
    own = [name for name in there if not name.startswith((*_RUNS, f"{CLAIMS}/", "checkpoints/"))]
    yield from (_looked_at(folder, name, there) for name in own)
    yield from (_missing(name) for name in _lacking(folder, there))
    checkpoints = storage / "checkpoints"
    with suppress(HookyardError, FileNotFoundError):  # which is said of experiment.yaml
        checkpoints = folder.kept_checkpoints()
    prefix = "checkpoints" if checkpoints.path == f"{storage.path}/checkpoints" else str(checkpoints)
    yield from (replace(one, file=f"{prefix}/{one.file}") for one in _checkpoint_files(checkpoints))
    for around, name in sorted(inside):
        inner_run = RunFolder(storage / around, name)
        if not inner_run.exists() and not inner_run.lacks_metadata():
            continue  # it was ended as it began
        inner = check_files(inner_run)
        yield from (
            replace(one, file=one.file if one.file.startswith(str(checkpoints)) else f"{around}/{name}/{one.file}")
            for one in inner
        )


def _files(storage: Storage) -> list[str]:
    """The paths of all that lies in a folder where files should be, in order; pipes and links that lead nowhere too."""
    if storage.local is None:
        return sorted(storage.tree())
    found = []
    for folder, folders, files in os.walk(storage.local):
        odd = [name for name in folders if Path(name).suffix in _SUFFIXES]
        found += [os.path.relpath(os.path.join(folder, name), storage.local) for name in (*files, *odd)]
    return sorted(found)


def _looked_at(folder: RunFolder, path: str, there: list[str]) -> CheckedFile:
    """Check one file that exists."""
    storage, name = folder.storage, path.rpartition("/")[2]
    advice = ADVICE.get(name, _COPY)
    if path in ("run.json", "source.json", "info.json") or (path.startswith("stats/") and name == "attempt.json"):
        return _judged(path, lambda: _json(storage, path), advice)
    if path == "experiment.yaml":
        return _judged(path, lambda: _experiment(folder), advice)
    if path in ("metrics.jsonl", "population.jsonl"):
        return _judged(path, lambda: _lines(folder, path), _LINES)
    if path in ("stats.parquet", "hooks.parquet") or (
        path.startswith("stats/") and name.endswith((".arrow", ".parquet"))
    ):
        return _judged(path, lambda: _rows(folder, path, there), _ROWS)
    if path == "log.txt":
        return _judged(path, lambda: _reads(lambda: storage.read(path)), advice)
    return CheckedFile(path, "unknown")


def _judged(path: str, check: Callable[[], bool], advice: str) -> CheckedFile:
    """What a check says of a file: whether it carries a checksum; that it is damaged is raised, or left out of it."""
    try:
        with hearing() as heard:
            sealed = check()
    except FileNotFoundError:
        return CheckedFile(path, "missing", "it is gone, or a link that leads nowhere", advice)
    except Exception as error:  # whatever a reader says of what it cannot read
        return CheckedFile(path, "damaged", getattr(error, "what", str(error)), getattr(error, "advice", advice))
    if heard:
        return CheckedFile(path, "damaged", "; ".join(heard), advice)
    return CheckedFile(path, "whole" if sealed else "readable")


def _reads(read: Callable[[], object]) -> bool:
    read()
    return False


def _experiment(folder: RunFolder) -> bool:
    """Read the experiment as a run does; raise ValueError for one that cannot be a resolved one."""
    document = parse_yaml(folder.experiment_text(), "experiment.yaml")
    if document.problems:
        raise ValueError(str(document.problems[0]))
    if "task" not in folder.experiment():
        raise ValueError("it has no `task`")
    return False


def _json(storage: Storage, path: str) -> bool:
    data = storage.read(path)
    _JSON[path.rpartition("/")[2]](parsed(data))
    if is_whole(data) is False:
        raise ValueError("it was changed after it was written: its checksum does not hold")
    return is_whole(data) is not None


def _lines(folder: RunFolder, path: str) -> bool:
    data = folder.storage.read(path)
    found = whole_lines(data, path, check_report if path == "metrics.jsonl" else mapping)
    run = _metadata(folder)
    if path == "metrics.jsonl" and run is not None and run.status in ENDED:
        if data and not data.endswith(b"\n"):
            left_out(path, "its last line was cut short")
        if len(found) < (run.reports or 0):
            left_out(path, f"{(run.reports or 0) - len(found)} of its {run.reports} reports are missing")
    return bool(found) and all(is_whole(line) for line in data.splitlines() if line.strip())


def _rows(folder: RunFolder, path: str, there: list[str]) -> bool:
    from orchestrator.stats.write.checksums import verify_parquet, verify_stream

    if path.endswith(".parquet"):
        with folder.storage.open(path) as file:
            return verify_parquet(file, path)
    table = path.rpartition("-")[0]
    is_over = folder.storage.local is None or any(name.startswith(f"{table}-") and name > path for name in there)
    return verify_stream(folder.storage.read(path), is_over)


def _metadata(folder: RunFolder) -> RunMetadata | None:
    with suppress(HookyardError, FileNotFoundError):  # which is said of run.json
        return folder.metadata()
    return None


def _lacking(folder: RunFolder, there: list[str]) -> Iterator[str]:
    """What should be there and is not."""
    yield from (name for name in ("run.json", "experiment.yaml") if name not in there)
    run = _metadata(folder)
    with_rows = {name.split("/")[1] for name in there if name.startswith("stats/attempt=") and "/rank=" in name}
    known = (run and run.attempts) or 0
    attempts = sorted({*with_rows, *(f"attempt={number}" for number in range(known))})
    yield from (f"stats/{one}/attempt.json" for one in attempts if f"stats/{one}/attempt.json" not in there)
    if run is None or run.sweep is not None or run.status not in ENDED or not known:
        return
    if run.reports and not any(name.startswith(("metrics.jsonl", ".parts/metrics.jsonl/")) for name in there):
        yield "metrics.jsonl"
    if not any(name.endswith((".parquet", ".arrow")) for name in there if name.startswith("stats")):
        yield "stats.parquet"


def _missing(path: str) -> CheckedFile:
    name = path.rpartition("/")[2]
    return CheckedFile(path, "missing", "it is gone", ADVICE.get(name, _ROWS if name == "stats.parquet" else _LINES))


def _checkpoint_files(storage: Storage) -> Iterator[CheckedFile]:
    """Every checkpoint's files, by their manifests, and what lies beside them."""
    there = _files(storage)
    names = sorted({name.split("/")[0] for name in there if "/" in name})
    covered = set()
    if INDEX in there:
        covered.add(INDEX)
        yield _judged(
            INDEX,
            lambda: _json(storage, INDEX),
            "Delete it: checkpoints keep their names then, and lose labels such as best",
        )
        index = _read(storage, INDEX)
        wanted = {
            *index.get("labels", {}).values(),
            *(name for owned in index.get("owners", {}).values() for name in owned),
        }
        yield from (
            CheckedFile(f"{name}/", "missing", f"{INDEX} names it", "Put back a copy of it")
            for name in sorted(wanted - {*names})
        )
    elif any(f"{name}/{MANIFEST}" in there for name in names):
        yield CheckedFile(INDEX, "missing", "it is gone: labels such as best are lost", _COPY)
    for name in names:
        path = f"{name}/{MANIFEST}"
        if path not in there:
            if f"{name}/model.pt" in there and not name.startswith(".") and storage.local:
                yield CheckedFile(path, "missing", "it is gone", _CHECKPOINT)
            continue
        covered.add(path)
        yield _judged(path, partial(_json, storage, path), _CHECKPOINT)
        for file, entry in _read(storage, path).get("files", {}).items():
            covered.add(f"{name}/{file}")
            yield _of_checkpoint(storage, name, file, entry)
    yield from (CheckedFile(name, "unknown") for name in there if name not in covered)


def _read(storage: Storage, path: str) -> dict[str, Any]:
    """An index or a manifest; nothing where it is damaged."""
    with suppress(ValueError, HookyardError, FileNotFoundError):
        found: dict[str, Any] = _JSON[path.rpartition("/")[2]](parsed(storage.read(path)))
        return found
    return {}


def _of_checkpoint(storage: Storage, name: str, file: str, entry: dict[str, Any]) -> CheckedFile:
    path = f"{name}/{file}"
    try:
        wrong = check_file(storage, name, file, entry)
    except HookyardError as error:
        wrong = str(error)
    if wrong is None:
        return CheckedFile(path, "whole")
    return CheckedFile(path, "missing" if wrong.endswith("is missing") else "damaged", wrong, _CHECKPOINT)
