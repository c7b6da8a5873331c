"""The checkpoints of a run, each written atomically.

A checkpoint is a folder with `model.pt`, `optimizer.pt`, `hooks.pt`, a `rank-0000.pt` for each rank (RNG state, its
own buffers and hook states), other files that hooks add (`ema.pt`), and `manifest.json` with the sha256 of each file.
Tensors that are sharded across ranks are in `shards-0000.pt` and so on, and the other files hold placeholders for them.

A folder is a checkpoint once it has its manifest. On disk, files are written to a hidden folder, which is renamed once
they are verified. An object store cannot rename: the files are written in their final location, the manifest last.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from io import BytesIO
from itertools import chain, count
from pickle import UnpicklingError
from typing import Any

import torch

from hooks.state import find_evaluation_label
from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.hashed_files import HashingWriter, write_file, write_object
from orchestrator.checkpoint.index import INDEX, Index, list_checkpoints
from orchestrator.checkpoint.manifest import (
    MANIFEST,
    Entries,
    RankGroup,
    describe_difference,
    find_damage,
    find_damage_together,
    position_in,
    read_manifest,
)
from orchestrator.checkpoint.position import Position
from orchestrator.errors import CheckpointError, DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import seal

_log = logging.getLogger("hookyard")

_THREADS = 4
"""Number of files written concurrently."""


class CheckpointStore:
    """The checkpoints of one run. Each rank has a store; `retain`, `mark` and `publish` only take effect on the master.

    An owner, such as a hook, lists the checkpoints that it keeps (`retain`). A checkpoint that loses its last owner is
    deleted; one that never had an owner is kept. Other folders are never touched. `explain_missing` returns the
    end of a message: why `best` or `last` is missing.
    """

    def __init__(
        self,
        storage: Storage,
        run_name: str = "run",
        is_master: bool = True,
        explain_missing: Callable[[str], str] = lambda label: "",
    ) -> None:
        self.storage, self.run_name, self.is_master = storage, run_name, is_master
        self._explain_missing = explain_missing
        self.index = Index(storage, is_master)

    # Writing: every rank writes its files, then the master commits.

    def staging_folder(self, name: str) -> str:
        """Return the folder that holds a checkpoint until it is committed."""
        return f".{name}.partial" if self.storage.local else name

    def write_files(self, name: str, files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Write objects into the unfinished checkpoint `name` and verify them; return their manifest entries."""
        write = partial(write_object, self.storage, self.staging_folder(name))
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(files, threads.map(write, files, files.values()), strict=True))

    def link(self, name: str, file: str, source: CheckpointStore, source_name: str) -> bool:
        """Hard-link a file of another store's checkpoint into the unfinished checkpoint `name`; return False if that
        is impossible."""
        return self.storage.link(f"{self.staging_folder(name)}/{file}", source.storage, f"{source_name}/{file}")

    def find_unused_name(self, name: str) -> str:
        """Return a name to write to: `name`, or an unused variant on an object store, which cannot replace a folder.

        Master only.
        """
        if self.storage.local:
            return name
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(candidate for candidate in names if MANIFEST not in self.storage.names(candidate))

    def discard_unfinished(self, name: str) -> None:
        """Delete the files of an interrupted save."""
        if self.is_master:
            self.storage.delete(self.staging_folder(name))

    def commit(
        self, name: str, entries: Mapping[str, dict[str, Any]], position: Position, details: Mapping[str, Any]
    ) -> None:
        """Write the manifest of a checkpoint whose files all ranks have written, and make it visible. Master only."""
        self._finish(
            name,
            {
                "name": name,
                "position": asdict(position),
                "files": dict(sorted(entries.items())),
                "torch": torch.__version__,
                **details,
            },
        )

    def _finish(self, name: str, manifest: Mapping[str, Any]) -> None:
        folder = self.staging_folder(name)
        self._check(folder, manifest["files"], check_hashes=False)
        self.storage.write(f"{folder}/{MANIFEST}", seal(json.dumps(manifest, indent=1)))
        if folder == name:
            return
        if self.storage.exists(name):
            self.storage.rename(name, f".{name}.old")
        self.storage.rename(folder, name)
        self.storage.delete(f".{name}.old")

    def reset_to(self, path: str) -> str:
        """Make a stored checkpoint the newest of this run, and return its name.

        If it belongs to another run, copy it and delete all checkpoints of this run; otherwise delete the newer ones.
        Master only; must not run during a save.
        """
        folder, _, name = path.rpartition("/")
        names = self.names()
        is_own = folder == self.storage.path
        if is_own:
            retained = names[: names.index(self.manifest(name)["name"]) + 1]
        else:
            self.copy_from(CheckpointStore(self.storage.at(folder)), name)
            retained = [name]
        index = self.index.read()
        owners = {owner: [kept for kept in owned if kept in retained] for owner, owned in index["owners"].items()}
        labels = {label: kept for label, kept in index["labels"].items() if is_own and kept in retained}
        self.index.write({**index, "owners": {**owners, "run": [name]}, "labels": labels})
        for other in set(names) - set(retained):
            self.storage.delete(other)
        return name

    def copy_from(self, source: CheckpointStore, name: str) -> None:
        """Copy and verify a checkpoint of another run; it has no owner, so it is kept. Master only."""
        manifest = source.manifest(name)
        self.discard_unfinished(name)

        def copy(file: str) -> None:
            def fill(writer: HashingWriter) -> None:
                for piece in source.storage.pieces(f"{name}/{file}"):
                    writer.write(piece)

            entry = write_file(self.storage, self.staging_folder(name), file, fill)
            if reason := describe_difference(file, manifest["files"][file], entry):
                raise CheckpointError(f"checkpoint {source.path(name)}: {reason}")

        self.storage.each(copy, manifest["files"])
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
        for name in self._folders():
            self.storage.delete(name)
        self.storage.delete(INDEX)

    # Finding checkpoints

    def path(self, name: str) -> str:
        """Return the path of a checkpoint, without a URL's query options and credentials."""
        return f"{self.storage.path}/{name}"

    def names(self) -> list[str]:
        """Return the stored checkpoints with an intact manifest, oldest first."""
        return list_checkpoints(self.storage, warn=False)

    def _folders(self) -> list[str]:
        """Return the folders of checkpoints, damaged ones included.

        On an object store, a folder without a manifest may belong to an interrupted save.
        """
        markers = {"model.pt", MANIFEST} if self.storage.local else {MANIFEST}
        paths = (path.partition("/") for path in self.storage.tree())
        return sorted({name for name, _, file in paths if file in markers and not name.startswith(".")})

    def latest(
        self,
        on_skip: Callable[[str], None] = lambda reason: None,
        group: RankGroup | None = None,
        *,
        check_hashes: bool = True,
    ) -> str | None:
        """Return the newest intact checkpoint, or None if there are no checkpoints.

        Calls `on_skip` with a reason for each newer, damaged checkpoint. With `group` it is collective, and each rank
        reads a share of the files. If `check_hashes` is false, only file sizes are compared. Raises CheckpointError if
        all checkpoints are damaged.
        """
        reasons: list[str] = []
        for name, manifest_or_error in group.broadcast(self._candidates) if group else self._candidates():
            if isinstance(manifest_or_error, CheckpointError):
                reason: str | None = str(manifest_or_error)
            elif group:
                reason = find_damage_together(
                    group, self.storage, name, manifest_or_error["files"], check_hashes=check_hashes
                )
            else:
                reason = find_damage(self.storage, name, manifest_or_error["files"], check_hashes=check_hashes)
            if not reason:
                for skip_reason in reasons:
                    on_skip(skip_reason)
                return str(name)
            reasons.append(reason)
        if reasons:
            raise CheckpointError("\n".join([f"none of the checkpoints in {self.storage} is intact:", *reasons]))
        return None

    def _candidates(self) -> list[tuple[str, dict[str, Any] | CheckpointError]]:
        """Return each checkpoint with its manifest, or its error: damaged manifests first, then newest to oldest."""

        def read(name: str) -> dict[str, Any] | CheckpointError:
            try:
                return self.manifest(name)
            except CheckpointError as error:
                return error

        names = self.names()
        order = [*(name for name in self._folders() if name not in names), *reversed(names)]
        return [*zip(order, self.storage.each(read, order), strict=True)]

    def resolve(self, label: str) -> str:
        """Return a checkpoint's name, given that name or a label such as `best`; raises CheckpointError.

        `last` is the newest checkpoint whose files have the right sizes.
        """
        labelled = self.index.read()["labels"].get(label)
        if labelled:
            return str(labelled)
        if label not in ("best", "last"):
            self.manifest(label)
            return label
        if label == "last":
            last = self.latest(lambda reason: _log.warning("skipped: %s", reason), check_hashes=False)
            if last is not None:
                return last
        names = self.names()
        if not names:
            raise CheckpointError(f"no checkpoint in {self.storage}{self._explain_missing(label)}")
        available = ", ".join(["last", *names])
        raise CheckpointError(
            f"no checkpoint 'best' in {self.storage}{self._explain_missing(label)}; available: {available}"
        )

    # Verifying

    def verify(self, name: str) -> str:
        """Read all files of a checkpoint, and return its fingerprint; raises CheckpointError if one is damaged."""
        self._check(name, self.manifest(name)["files"])
        return self.fingerprint(name)

    def fingerprint(self, name: str) -> str:
        """Return the sha256 of a checkpoint's manifest, which contains the hashes of its files."""
        return hashlib.sha256(self.storage.read(f"{name}/{MANIFEST}")).hexdigest()

    def _check(self, folder: str, entries: Entries, *, check_hashes: bool = True) -> None:
        reason = find_damage(self.storage, folder, entries, check_hashes=check_hashes)
        if reason:
            others = ", ".join(other for other in self.names() if other != folder)
            raise CheckpointError(f"{reason}; other checkpoints: {others}" if others else reason)

    # Reading

    def manifest(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's manifest; raises CheckpointError if it is missing or damaged."""
        try:
            return read_manifest(self.storage, name)
        except FileNotFoundError:
            names = ", ".join(self.names()) or "none"
            raise CheckpointError(f"no checkpoint '{name}' in {self.storage}; available: {names}") from None
        except DamagedFile as error:
            raise CheckpointError(f"the manifest of '{name}' in {self.storage} is damaged: {error.what}") from error

    def files(self, name: str) -> list[str]:
        """Return the files of a checkpoint."""
        return list(self.manifest(name)["files"])

    def position(self, name: str) -> Position:
        """Return the training progress at a checkpoint."""
        return position_in(self.manifest(name))

    def load(self, name: str, file: str) -> Any:
        """Load a checkpoint file onto the CPU: tensors and plain data. Raises CheckpointError for anything else."""
        try:
            with self.storage.fetched(f"{name}/{file}") as content:
                return placeholders.decode(torch.load(content, map_location="cpu", weights_only=True))
        except (OSError, EOFError, RuntimeError, UnpicklingError) as error:
            raise CheckpointError(f"{self.path(name)}/{file} cannot be loaded: {error}") from error

    def find_evaluated_weights(self, label: str) -> str:
        """Return the key of the weights used for validation: `model`, or that of a hook, such as `ema/model`.

        If several sets of weights were validated, the label's metric, or else the experiment's main metric,
        selects one.
        """
        name, index = self.resolve(label), self.index.read()
        manifest, metrics = self.manifest(name), index.get("metrics", {})
        labels = [label, *(other for other, labelled in index["labels"].items() if labelled == name)]
        metric = next((metrics[known] for known in labels if known in metrics), manifest.get("main_metric", ""))
        evaluations = manifest.get("evaluations", {})
        evaluation = find_evaluation_label(metric, evaluations)
        hook = "" if evaluation is None else evaluations[evaluation]
        return f"{hook}/model" if hook else "model"

    def weights(self, label: str, entry: str | None = None) -> dict[str, Any]:
        """Return the verified state dict of the evaluated weights or of `entry`, unsharded and on the CPU."""
        name, entry = self.resolve(label), entry or self.find_evaluated_weights(label)
        file = f"{entry.partition('/')[0]}.pt"
        entries = self.manifest(name)["files"]
        needed = {key: value for key, value in entries.items() if key == file or placeholders.has_shards(key)}
        self._check(name, needed)
        weights: dict[str, Any] = self._load_entries(name, {"model": entry})["model"]
        return weights

    def state_dict_keys(self, name: str, entry: str) -> list[str]:
        """Return the keys of a state dict in a checkpoint, such as `model` or `ema/model`."""
        file, _, key = entry.partition("/")
        content = self.load(name, f"{file}.pt")
        return list(content[key] if key else content)

    def buffers(self, label: str) -> dict[str, Any]:
        """Return the verified buffers of rank 0, including those outside the state dict (`persistent=False`)."""
        name, file = self.resolve(label), "rank-0000.pt"
        entries = self.manifest(name)["files"]
        self._check(name, {file: entries[file]})
        buffers: dict[str, Any] = self.load(name, file)["buffers"]
        return buffers

    # Called by hooks

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Set the checkpoints that an owner keeps, and delete those that no owner keeps any more."""
        with self.index.edit() as index:
            index["owners"][owner] = list(dict.fromkeys(names))

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        """Label a checkpoint; `metric` is the metric by which it is best."""
        with self.index.edit() as index:
            index["labels"].update(dict.fromkeys(labels, name))
            index["metrics"] = {**index.get("metrics", {}), **dict.fromkeys(labels if metric else (), metric)}

    def publish(self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]) -> str:
        """Write parts of a checkpoint to `<folder>/<run>-<name>-<hash>.pt`, and return its path.

        Each part is a file, or a key of a file (`ema/model`). The part `meta` is the manifest plus `config`.
        `folder` is relative to the checkpoints folder.
        """
        if not self.is_master:
            return ""
        buffer = BytesIO()
        content = self._load_entries(name, {key: entry for key, entry in parts.items() if entry != "meta"})
        if "meta" in parts.values():
            content["meta"] = {**self.manifest(name), "config": dict(config)}
        torch.save(content, buffer)
        target = f"{folder}/{self.run_name}-{name}-{hashlib.sha256(buffer.getvalue()).hexdigest()[:8]}.pt"
        self.storage.write(target, buffer.getvalue())
        return self.path(target)

    def _load_entries(self, name: str, entries: Mapping[str, str]) -> dict[str, Any]:
        available = {file.removesuffix(".pt"): file for file in shared_files(self.files(name))}
        content = {}
        for target, entry in entries.items():
            file, _, key = entry.partition("/")
            if file not in available:
                raise CheckpointError(f"checkpoint '{name}' has no {file}; it has {', '.join(available)}")
            loaded = self.load(name, available[file])
            content[target] = loaded[key] if key else loaded
        return self.with_shards(name, content)

    def with_shards(self, name: str, content: dict[str, Any], mesh: Any = None) -> dict[str, Any]:
        """Return content with its sharded tensors: this rank's shards if `mesh` is given, otherwise full tensors."""
        keys = [*placeholders.keys_in(content)]
        if not keys:
            return content
        from orchestrator.checkpoint import sharded_tensors as shards

        filled: dict[str, Any] = placeholders.fill(content, shards.read(self, name, keys, mesh))
        return filled


def shared_files(files: Iterable[str]) -> list[str]:
    """Return the files that all ranks share: neither per-rank files nor shards."""
    return [file for file in files if not file.startswith("rank-") and not placeholders.has_shards(file)]
