"""The checkpoints of a run, each written atomically.

A checkpoint is a folder with `model.pt`, `optimizer.pt`, `hooks.pt`, a `rank-0000.pt` for each rank
(RNG state, its own buffers and hook states), other files that hooks add (`ema.pt`), and
`manifest.json` with the sha256 of each file. Tensors that are sharded across ranks are in
`shards-0000.pt` and so on, and the other files hold placeholders for them.

A folder is a checkpoint once it has its manifest. On disk, files are written to a hidden folder,
which is renamed once they are verified. An object store cannot rename: the files are written in
their final location, the manifest last.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any

import torch

from hooks.position import Position
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.deletion import delete_checkpoint
from orchestrator.disk.checkpoints.files import HashingWriter, write_file, write_object
from orchestrator.disk.checkpoints.index import INDEX, Index
from orchestrator.disk.checkpoints.listing import read_checkpoints
from orchestrator.disk.checkpoints.manifest import MANIFEST, describe_difference
from orchestrator.disk.checkpoints.published_weights import publish_parts
from orchestrator.disk.checkpoints.reader import CheckpointReader
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage
from orchestrator.storage.json_files import format_file

_THREADS = 4
"""Number of files written concurrently."""
_MIN_CONCURRENT_BYTES = 2**20
"""Size of a checkpoint on a disk from which threads write its files; smaller ones take longer with
threads."""

_UNFINISHED = re.compile(r"\.(epoch|step)-\d+(-iteration-\d+)?(-\d+)?\.(partial|deleted)")
"""Name of the folder of a checkpoint that is not completely written, or not completely deleted."""


class CheckpointStore(CheckpointReader):
    """The checkpoints of one run, to write and to read. Each rank has a store; `retain`, `mark` and
    `publish` only take effect on the master.

    An owner, such as a hook, lists the checkpoints that it keeps (`retain`). A checkpoint that
    loses its last owner is deleted; one that never had an owner is kept. Other folders are never
    touched.
    """

    def __init__(
        self,
        storage: Storage,
        run_name: str = "run",
        is_master: bool = True,
        explain_missing: Callable[[str], str] = lambda label: "",
    ) -> None:
        super().__init__(storage, explain_missing)
        self.run_name = run_name
        self.is_master = is_master
        self.index = Index(storage, is_master)

    def read_index(self) -> dict[str, Any]:
        """Return the index with unwritten changes; raises DamagedFile."""
        return self.index.read()

    # Writing: every rank writes its files, then the master commits.

    def get_staging_folder(self, name: str) -> str:
        """Return the folder that holds a checkpoint until it is committed."""
        return f".{name}.partial" if self.storage.local else name

    def write_files(self, name: str, files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Write objects into the unfinished checkpoint `name` and verify them; return their
        manifest entries."""
        write = partial(write_object, self.storage, self.get_staging_folder(name))
        tensors = placeholders.tensors_in(files)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self.storage.local and size < _MIN_CONCURRENT_BYTES:
            return {file: write(file, content) for file, content in files.items()}
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(files, threads.map(write, files, files.values()), strict=True))

    def choose_name(self, name: str) -> str:
        """Return `name`, or an unused variant on an object store, which cannot replace a folder.
        Variants sort by age. Master only."""
        if self.storage.local:
            return name
        candidate = name
        for number in count(2):
            if MANIFEST not in self.storage.names(candidate):
                break
            candidate = f"{name}-{number:02}"
        return candidate

    def discard_unfinished(self, name: str) -> None:
        """Delete the files of an interrupted save."""
        if self.is_master:
            self.storage.delete(self.get_staging_folder(name))

    def commit(
        self,
        name: str,
        entries: Mapping[str, dict[str, Any]],
        position: Position,
        details: Mapping[str, Any],
    ) -> None:
        """Write the manifest of a checkpoint whose files all ranks have written, and make it
        visible. Master only."""
        files = dict(sorted(entries.items()))
        manifest = {
            "name": name,
            "position": asdict(position),
            "files": files,
            "torch": torch.__version__,
            **details,
        }
        self._finish(name, manifest)

    def _finish(self, name: str, manifest: Mapping[str, Any]) -> None:
        folder = self.get_staging_folder(name)
        self.check_files(folder, manifest["files"], check_hashes=False)
        self.storage.write(f"{folder}/{MANIFEST}", format_file(manifest))
        if folder == name:
            return
        if self.storage.exists(name):
            self.storage.delete(f".{name}.old")
            self.storage.rename(name, f".{name}.old")
        self.storage.rename(folder, name)
        self.storage.delete(f".{name}.old")

    def is_committed(self, name: str) -> bool:
        """Return whether the checkpoint that ranks have written, and no earlier one of this name, is
        visible."""
        folder = self.get_staging_folder(name)
        is_staged = folder != name and self.storage.exists(folder)
        return not is_staged and self.storage.exists(f"{name}/{MANIFEST}")

    def reset_to(self, path: str, media: int = 0) -> str:
        """Make a stored checkpoint the newest of this run, and return its name.

        If it belongs to another run, copy it and delete all checkpoints of this run; otherwise
        delete the newer ones. Master only; must not run during a save.

        Args:
            path: Path of the checkpoint.
            media: As in `copy_from`.
        """
        folder, _, name = path.rpartition("/")
        names = self.list_names()
        is_own = folder == self.storage.path
        if is_own:
            self.read_manifest(name)  # raises CheckpointError if there is none
            retained = names[: names.index(name) + 1]
        else:
            name = self.copy_from(CheckpointReader(self.storage.at(folder)), name, media)
            retained = [name]
        self.index.reset(name, retained, keeps_labels=is_own)
        for other in set(names) - set(retained):
            delete_checkpoint(self.storage, other)
        return name

    def copy_from(self, source: CheckpointReader, name: str, media: int = 0) -> str:
        """Copy and verify a checkpoint of another run, and record where it comes from; return the
        name of the copy. It has no owner, so it is kept. Master only.

        Args:
            source: The checkpoints of the other run.
            name: Name of the checkpoint.
            media: Number of images and tables of this run, which a resume from the copy keeps.
        """
        original = source.read_manifest(name)
        target = self.choose_name(name)
        self.discard_unfinished(target)

        def copy(file: str) -> None:
            def fill(writer: HashingWriter) -> None:
                for piece in source.storage.read_chunks(f"{name}/{file}"):
                    writer.write(piece)

            entry = write_file(self.storage, self.get_staging_folder(target), file, fill)
            if reason := describe_difference(file, original["files"][file], entry):
                raise CheckpointError(f"checkpoint {source.get_path(name)}: {reason}")

        self.storage.map(copy, original["files"])
        own = {"name": target, "copied_from": source.get_path(name), "media": media}
        manifest = {**original, **own}
        self._finish(target, manifest)
        return target

    def recover(self) -> None:
        """Restore a checkpoint whose replacement was interrupted, and delete what is left of one
        that was replaced, or not completely written or deleted. Must not run during a save."""
        for folder in self.storage.names():
            if _UNFINISHED.fullmatch(folder):
                self.storage.delete(folder)
                continue
            name = folder.removeprefix(".").removesuffix(".old")
            if folder != f".{name}.old":
                continue
            if self.storage.exists(f"{name}/{MANIFEST}"):
                self.storage.delete(folder)
            elif self.storage.exists(f"{folder}/{MANIFEST}") and not self.storage.exists(name):
                self.storage.rename(folder, name)

    def clear(self) -> None:
        """Delete all checkpoints. Must not run during a save."""
        manifests, errors = read_checkpoints(self.storage)
        for name in (*manifests, *errors):
            delete_checkpoint(self.storage, name)
        self.storage.delete(INDEX)

    # Called by hooks

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Set the checkpoints that an owner keeps, and delete those that no owner keeps any
        more."""
        with self.index.edit() as index:
            index["owners"][owner] = list(dict.fromkeys(names))

    def retain_newest(self, owner: str, name: str, count: int) -> None:
        """Add a checkpoint to those that an owner keeps, which are the newest `count`; delete an older
        one, unless another owner keeps it."""
        previous = self.index.read()["owners"].get(owner, [])
        names = [*(other for other in previous if other != name), name]
        self.retain(owner, names[-count:])

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        """Label a checkpoint; `metric` is the metric by which it is best."""
        with self.index.edit() as index:
            index["labels"].update(dict.fromkeys(labels, name))
            metrics = index.setdefault("metrics", {})
            if metric:
                metrics.update(dict.fromkeys(labels, metric))

    def publish(
        self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]
    ) -> str:
        """Write parts of a checkpoint to `<folder>/<run>-<name>-<hash>.pt`, and return its path.

        Each part is a file, or a key of a file (`ema/model`). The part `meta` is the manifest plus
        `config`. `folder` is relative to the checkpoints folder.
        """
        if not self.is_master:
            return ""
        return publish_parts(self, name, parts, f"{folder}/{self.run_name}-{name}", config)
