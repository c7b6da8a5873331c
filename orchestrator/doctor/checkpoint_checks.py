"""Checks of a folder of checkpoints: each file against its manifest. Needs neither Ray nor torch."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from orchestrator.disk.checkpoints.index import INDEX
from orchestrator.disk.checkpoints.manifest import MANIFEST, check_file
from orchestrator.doctor.checked_file import ADVICE_FOR_OTHERS, NO_FILE, CheckedFile, run_check
from orchestrator.doctor.file_checks import check_json, read_json
from orchestrator.errors import HookyardError
from orchestrator.storage import Storage

_ADVICE = "`resume` uses the newest intact checkpoint instead; restore a copy, or remove its folder"
_ADVICE_FOR_INDEX = "Delete it: checkpoints keep their names, and lose labels such as best"


def check_checkpoints(storage: Storage) -> list[CheckedFile]:
    """Check the index, the manifests and their files, and list all other files."""
    paths = storage.tree()
    names = sorted({path.split("/")[0] for path in paths if "/" in path})

    results = [*_check_index(storage, paths, names)]
    for name in names:
        results.extend(_check_checkpoint(storage, paths, name))

    checked = {result.file for result in results}
    results.extend(CheckedFile(path, "unknown") for path in paths if path not in checked)
    return results


def _check_index(
    storage: Storage, paths: Collection[str], names: Collection[str]
) -> Iterator[CheckedFile]:
    """Check the index, and that the checkpoints that it names exist."""
    if INDEX in paths:
        yield run_check(partial(check_json, storage, INDEX), INDEX, _ADVICE_FOR_INDEX)
        for name in sorted(_list_indexed(storage) - {*names}):
            what = f"{INDEX} names it"
            yield CheckedFile(f"{name}/", "missing", what, "Restore it from a backup")
    elif any(f"{name}/{MANIFEST}" in paths for name in names):
        what = "it is missing: labels such as best are lost"
        yield CheckedFile(INDEX, "missing", what, ADVICE_FOR_OTHERS)


def _list_indexed(storage: Storage) -> set[str]:
    """Return the checkpoints that the index names; none if it is damaged."""
    with suppress(ValueError, HookyardError):
        index = read_json(storage, INDEX)
        return {*index["labels"].values()}.union(*index["owners"].values())
    return set()


def _check_checkpoint(storage: Storage, paths: Collection[str], name: str) -> Iterator[CheckedFile]:
    """Check the manifest of a checkpoint and the files that it names."""
    manifest = f"{name}/{MANIFEST}"
    if manifest not in paths:
        # On an object store, and in a hidden folder, a checkpoint may still be being written.
        if f"{name}/model.pt" in paths and not name.startswith(".") and storage.local:
            yield CheckedFile(manifest, "missing", NO_FILE, _ADVICE)
        return

    yield run_check(partial(check_json, storage, manifest), manifest, _ADVICE)
    for file, entry in _read_entries(storage, manifest).items():
        path = f"{name}/{file}"
        if path not in paths:
            yield CheckedFile(path, "missing", NO_FILE, _ADVICE)
        elif problem := _find_problem(storage, name, file, entry):
            yield CheckedFile(path, "damaged", problem, _ADVICE)
        else:
            yield CheckedFile(path, "intact")


def _read_entries(storage: Storage, manifest: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the files that a manifest names; none if it is damaged."""
    with suppress(ValueError, HookyardError):
        files: Mapping[str, Mapping[str, Any]] = read_json(storage, manifest)["files"]
        return files
    return {}


def _find_problem(storage: Storage, name: str, file: str, entry: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a file of a checkpoint; None if it is intact."""
    try:
        return check_file(storage, name, file, entry)
    except HookyardError as error:
        return str(error)
