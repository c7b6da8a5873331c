"""The checkpoints of a run, each written atomically.

A checkpoint is a folder with `model.pt`, `optimizer.pt`, `hooks.pt`, a `rank-0000.pt` for each rank
(RNG state, its own buffers and hook states), other files that hooks add (`ema.pt`), and
`manifest.json` with the sha256 of each file. Tensors that are sharded across ranks are in
`shards-0000.pt` and so on, and the other files hold placeholders for them.

A folder is a checkpoint once it has its manifest. On disk, files are written to a hidden folder,
which is renamed once they are verified. An object store cannot rename: the files are written in
their final location, the manifest last.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from io import BytesIO
from itertools import count
from pickle import UnpicklingError
from typing import Any

import torch

from hooks.position import Position
from hooks.state import find_evaluation_label
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.files import HashingWriter, write_file, write_object
from orchestrator.disk.checkpoints.index import (
    INDEX,
    Index,
    read_checkpoints,
    read_manifest_or_error,
)
from orchestrator.disk.checkpoints.manifest import (
    MANIFEST,
    Entries,
    RankGroup,
    describe_difference,
    find_damage,
    parse_position,
)
from orchestrator.errors import CheckpointError
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import format_file, write_json

_log = logging.getLogger("hookyard")

_THREADS = 4
"""Number of files written concurrently."""
_MIN_CONCURRENT_BYTES = 2**20
"""Size of a checkpoint on a disk from which threads write its files; smaller ones take longer with
threads."""


class CheckpointStore:
    """The checkpoints of one run. Each rank has a store; `retain`, `mark` and `publish` only take
    effect on the master.

    An owner, such as a hook, lists the checkpoints that it keeps (`retain`). A checkpoint that
    loses its last owner is deleted; one that never had an owner is kept. Other folders are never
    touched. `explain_missing` returns the end of a message: why `best` or `last` is missing.
    """

    def __init__(
        self,
        storage: Storage,
        run_name: str = "run",
        is_master: bool = True,
        explain_missing: Callable[[str], str] = lambda label: "",
    ) -> None:
        self.storage = storage
        self.run_name = run_name
        self.is_master = is_master
        self._explain_missing = explain_missing
        self.index = Index(storage, is_master)

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
        Master only."""
        if self.storage.local:
            return name
        candidate = name
        for number in count(2):
            if MANIFEST not in self.storage.names(candidate):
                break
            candidate = f"{name}-{number}"
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
        self._check(folder, manifest["files"], check_hashes=False)
        self.storage.write(f"{folder}/{MANIFEST}", format_file(manifest))
        if folder == name:
            return
        if self.storage.exists(name):
            self.storage.rename(name, f".{name}.old")
        self.storage.rename(folder, name)
        self.storage.delete(f".{name}.old")

    def reset_to(self, path: str) -> str:
        """Make a stored checkpoint the newest of this run, and return its name.

        If it belongs to another run, copy it and delete all checkpoints of this run; otherwise
        delete the newer ones. Master only; must not run during a save.
        """
        folder, _, name = path.rpartition("/")
        names = self.list_names()
        is_own = folder == self.storage.path
        if is_own:
            retained = names[: names.index(self.read_manifest(name)["name"]) + 1]
        else:
            self.copy_from(CheckpointStore(self.storage.at(folder)), name)
            retained = [name]
        self._reset_index(name, retained, keeps_labels=is_own)
        for other in set(names) - set(retained):
            self.storage.delete(other)
        return name

    def _reset_index(self, name: str, retained: Sequence[str], *, keeps_labels: bool) -> None:
        """Remove all checkpoints but the retained ones from the index; the run owns `name`."""
        index = self.index.read()
        labels = index["labels"].items() if keeps_labels else ()
        index["labels"] = {label: target for label, target in labels if target in retained}
        for owner, names in index["owners"].items():
            index["owners"][owner] = [owned for owned in names if owned in retained]
        index["owners"]["run"] = [name]
        # Not by `edit`, which deletes a checkpoint without owner, even if only its manifest is
        # lost.
        write_json(self.storage, INDEX, index)

    def copy_from(self, source: "CheckpointStore", name: str) -> None:
        """Copy and verify a checkpoint of another run; it has no owner, so it is kept. Master
        only."""
        manifest = source.read_manifest(name)
        self.discard_unfinished(name)

        def copy(file: str) -> None:
            def fill(writer: HashingWriter) -> None:
                for piece in source.storage.read_chunks(f"{name}/{file}"):
                    writer.write(piece)

            entry = write_file(self.storage, self.get_staging_folder(name), file, fill)
            if reason := describe_difference(file, manifest["files"][file], entry):
                raise CheckpointError(f"checkpoint {source.get_path(name)}: {reason}")

        self.storage.map(copy, manifest["files"])
        self._finish(name, manifest)

    def recover(self) -> None:
        """Restore a checkpoint whose replacement was interrupted. Must not run during a save."""
        for folder in self.storage.names():
            name = folder.removeprefix(".").removesuffix(".old")
            if folder != f".{name}.old" or not self.storage.exists(f"{folder}/{MANIFEST}"):
                continue
            if self.storage.exists(name):
                self.storage.delete(folder)
            else:
                self.storage.rename(folder, name)

    def clear(self) -> None:
        """Delete all checkpoints. Must not run during a save."""
        manifests, errors = read_checkpoints(self.storage)
        for name in (*manifests, *errors):
            self.storage.delete(name)
        self.storage.delete(INDEX)

    # Finding checkpoints

    def get_path(self, name: str) -> str:
        """Return the path of a checkpoint, without a URL's query options and credentials."""
        return f"{self.storage.path}/{name}"

    def list_names(self) -> list[str]:
        """Return the stored checkpoints with an intact manifest, oldest first."""
        return [*read_checkpoints(self.storage)[0]]

    def find_latest(
        self,
        on_skip: Callable[[str], None] = lambda reason: None,
        group: RankGroup | None = None,
        *,
        check_hashes: bool = True,
    ) -> str | None:
        """Return the newest intact checkpoint, or None if there are no checkpoints.

        Calls `on_skip` with a reason for each newer, damaged checkpoint. Collective with `group`:
        each rank reads a share of the files. Compares only sizes without `check_hashes`. Raises
        CheckpointError if all are damaged.
        """
        read = partial(read_checkpoints, self.storage)
        manifests, errors = group.broadcast(read) if group else read()
        reasons = [str(error) for error in errors.values()]
        for name in reversed(manifests):
            entries = manifests[name]["files"]
            reason = find_damage(self.storage, name, entries, group, check_hashes=check_hashes)
            if not reason:
                for skip_reason in reasons:
                    on_skip(skip_reason)
                return str(name)
            reasons.append(reason)
        if reasons:
            lines = [f"none of the checkpoints in {self.storage} is intact:", *reasons]
            raise CheckpointError("\n".join(lines))
        return None

    def resolve(self, label: str) -> str:
        """Return a checkpoint's name, given that name or a label such as `best`; raises
        CheckpointError.

        `last` is the newest checkpoint whose files have the right sizes.
        """
        if target := self.index.read()["labels"].get(label):
            return str(target)
        if label not in ("best", "last"):
            self.read_manifest(label)
            return label
        if label == "last":
            last = self.find_latest(
                lambda reason: _log.warning("skipped: %s", reason), check_hashes=False
            )
            if last is not None:
                return last

        names = self.list_names()
        place = f"in {self.storage}{self._explain_missing(label)}"
        if not names:
            raise CheckpointError(f"no checkpoint {place}")
        available = ", ".join(["last", *names])
        raise CheckpointError(f"no checkpoint 'best' {place}; available: {available}")

    # Verifying

    def verify(self, name: str) -> str:
        """Read all files of a checkpoint, and return its fingerprint; raises CheckpointError if one
        is damaged."""
        self._check(name, self.read_manifest(name)["files"])
        return self.compute_fingerprint(name)

    def compute_fingerprint(self, name: str) -> str:
        """Return the sha256 of a checkpoint's manifest, which contains the hashes of its files."""
        return hashlib.sha256(self.storage.read(f"{name}/{MANIFEST}")).hexdigest()

    def _check(self, folder: str, entries: Entries, *, check_hashes: bool = True) -> None:
        reason = find_damage(self.storage, folder, entries, check_hashes=check_hashes)
        if reason:
            others = ", ".join(other for other in self.list_names() if other != folder)
            raise CheckpointError(f"{reason}; other checkpoints: {others}" if others else reason)

    # Reading

    def read_manifest(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's manifest; raises CheckpointError if it is missing or damaged."""
        manifest = read_manifest_or_error(self.storage, name)
        if isinstance(manifest, CheckpointError):
            raise manifest
        if manifest is not None:
            return manifest

        names = self.list_names()
        available = ", ".join([*self.index.read()["labels"], "last", *names]) if names else "none"
        raise CheckpointError(f"no checkpoint '{name}' in {self.storage}; available: {available}")

    def read_position(self, name: str) -> Position:
        """Return the training progress at a checkpoint."""
        return parse_position(self.read_manifest(name)["position"])

    def load(self, name: str, file: str) -> Any:
        """Load a checkpoint file onto the CPU: tensors and plain data. Raises CheckpointError for
        anything else."""
        try:
            with self.storage.open_copy(f"{name}/{file}") as content:
                stored = torch.load(content, map_location="cpu", weights_only=True)
                return placeholders.decode(stored)
        except (OSError, EOFError, RuntimeError, UnpicklingError) as error:
            path = f"{self.get_path(name)}/{file}"
            raise CheckpointError(f"{path} cannot be loaded: {error}") from error

    def find_evaluated_weights(self, label: str) -> str:
        """Return the key of the weights used for validation: `model`, or that of a hook, such as
        `ema/model`.

        If several were validated, the label's metric, or else the experiment's main metric, selects
        one.
        """
        name = self.resolve(label)
        index = self.index.read()
        manifest = self.read_manifest(name)
        labels = [label, *(other for other, target in index["labels"].items() if target == name)]
        metrics = index.get("metrics", {})
        of_labels = [metrics[known] for known in labels if known in metrics]
        metric = of_labels[0] if of_labels else manifest.get("main_metric", "")

        evaluations = manifest.get("evaluations", {})
        evaluation = find_evaluation_label(metric, evaluations)
        hook = "" if evaluation is None else evaluations[evaluation]
        return f"{hook}/model" if hook else "model"

    def load_weights(self, label: str, key: str | None = None) -> dict[str, Any]:
        """Return the verified state dict of the evaluated weights or of `key`, unsharded and on the
        CPU."""
        name = self.resolve(label)
        key = key or self.find_evaluated_weights(label)
        own_file = f"{key.partition('/')[0]}.pt"
        needed = {}
        for file, entry in self.read_manifest(name)["files"].items():
            if file == own_file or placeholders.has_shards(file):
                needed[file] = entry
        self._check(name, needed)
        weights: dict[str, Any] = self._load_parts(name, {"model": key})["model"]
        return weights

    def list_keys(self, name: str, entry: str) -> list[str]:
        """Return the keys of a state dict in a checkpoint, such as `model` or `ema/model`."""
        file, _, key = entry.partition("/")
        content = self.load(name, f"{file}.pt")
        return list(content[key] if key else content)

    def load_buffers(self, label: str) -> tuple[dict[str, Any], list[str]]:
        """Return the verified buffers of rank 0, including those outside the state dict
        (`persistent=False`), and the names of the buffers that a forward pass made or changed in
        shape."""
        name = self.resolve(label)
        file = "rank-0000.pt"
        entries = self.read_manifest(name)["files"]
        self._check(name, {file: entries[file]})
        rank_state = self.load(name, file)
        return rank_state["buffers"], rank_state["remade_buffers"]

    # Called by hooks

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Set the checkpoints that an owner keeps, and delete those that no owner keeps any
        more."""
        with self.index.edit() as index:
            index["owners"][owner] = list(dict.fromkeys(names))

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
        stored_parts = {part: key for part, key in parts.items() if key != "meta"}
        content = self._load_parts(name, stored_parts)
        if "meta" in parts.values():
            content["meta"] = {**self.read_manifest(name), "config": dict(config)}

        buffer = BytesIO()
        torch.save(content, buffer)
        sha256 = hashlib.sha256(buffer.getvalue()).hexdigest()
        target = f"{folder}/{self.run_name}-{name}-{sha256[:8]}.pt"
        self.storage.write(target, buffer.getvalue())
        return self.get_path(target)

    def _load_parts(self, name: str, parts: Mapping[str, str]) -> dict[str, Any]:
        files = shared_files(self.read_manifest(name)["files"])
        available = [file.removesuffix(".pt") for file in files]
        content = {}
        for part, path in parts.items():
            file, _, key = path.partition("/")
            if file not in available:
                has = ", ".join(available)
                raise CheckpointError(f"checkpoint '{name}' has no {file}; it has {has}")
            loaded = self.load(name, f"{file}.pt")
            content[part] = loaded[key] if key else loaded
        return self.with_shards(name, content)

    def with_shards(self, name: str, content: dict[str, Any], mesh: Any = None) -> dict[str, Any]:
        """Return content with its sharded tensors: this rank's shards if `mesh` is given, otherwise
        full tensors."""
        keys = [*placeholders.keys_in(content)]
        if not keys:
            return content
        from orchestrator.disk.checkpoints import sharded_tensors as shards

        tensors = shards.read(partial(self.load, name), keys, mesh)
        filled: dict[str, Any] = placeholders.fill(content, tensors)
        return filled


def shared_files(files: Iterable[str]) -> list[str]:
    """Return the files that all ranks share: neither per-rank files nor shards."""
    return [
        file for file in files if not file.startswith("rank-") and not placeholders.has_shards(file)
    ]
