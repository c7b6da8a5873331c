"""The store: a run's checkpoints on disk, written whole or not at all.

A checkpoint is a folder: `model.pt`, `optimizer.pt`, `hooks.pt`, one `rank-0000.pt` for each rank (random state, its
own buffers and hook states), a file for whatever else a hook adds (`ema.pt`), and `manifest.json` with the sha256 of
each. Where ranks shared out the model among them, tensors lie in `shards-0000.pt` and so on, with placeholders for them
in the others. The folder is written beside its place, verified and renamed; a folder without a manifest is no
checkpoint.
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

from hooks.state import evaluation_of
from orchestrator.checkpoint import placeholders
from orchestrator.checkpoint.file_writing import SummingWriter, write_file, write_object
from orchestrator.checkpoint.index import INDEX, Index
from orchestrator.checkpoint.manifest import MANIFEST, position_in, read_manifest
from orchestrator.checkpoint.position import Position, Stage
from orchestrator.checkpoint.verification import Alone, Ranks, damage_among, damage_in
from orchestrator.errors import CheckpointError, DamagedFile
from orchestrator.storage import Storage
from orchestrator.storage.stored_data import sealed

_log = logging.getLogger("hookyard")

_FILES_AT_ONCE = 4
"""How many files of a checkpoint are written beside each other: most of the time one waits for the disk."""
_WORTH_THREADS_BYTES = 2**24
"""What is less is written before threads have begun and taken turns."""


class CheckpointStore:
    """The checkpoints of one run. Each rank has one; only the master's `commit`, `retain`, `mark` and `publish` act.

    `retain` is reference counting by owner: a checkpoint that an owner has given up and nobody else wants is deleted.
    Folders this store did not write are never touched.
    """

    def __init__(self, storage: Storage, run_name: str = "run", master: bool = True) -> None:
        self.storage, self.run_name, self.master = storage, run_name, master
        self.index = Index(storage, master)

    # Writing, in three acts: every rank writes its files, the master commits, everybody goes on.

    def staging(self, name: str) -> str:
        """Where the files of a checkpoint lie until it is committed."""
        return f".{name}.partial" if self.storage.local else name

    def write_files(self, name: str, files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Writes objects into the unfinished checkpoint `name`, and verifies them; returns the manifest's entries for
        them."""
        write = partial(write_object, self.storage, self.staging(name))
        size = sum(tensor.numel() * tensor.element_size() for tensor in placeholders.tensors_in(files))
        if self.storage.local and size < _WORTH_THREADS_BYTES:
            return {file: write(file, content) for file, content in files.items()}
        with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
            return dict(zip(files, threads.map(write, files, files.values()), strict=True))

    def link(self, name: str, file: str, source: CheckpointStore, stored: str) -> bool:
        """Puts a file of a stored checkpoint into the unfinished checkpoint `name` as a hard link, and whether that
        could be done."""
        return self.storage.link(f"{self.staging(name)}/{file}", source.storage, f"{stored}/{file}")

    def free_name(self, name: str) -> str:
        """The name to save under: on an object store, where nothing is replaced at once, a new one if `name` is taken.
        Master."""
        if self.storage.local:
            return name
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(free for free in names if MANIFEST not in self.storage.names(free))

    def discard_unfinished(self, name: str) -> None:
        """Clears what an interrupted save left behind."""
        if self.master:
            self.storage.delete(self.staging(name))

    def commit(
        self, name: str, entries: Mapping[str, dict[str, Any]], position: Position, details: Mapping[str, Any]
    ) -> None:
        """Sees that the files of all ranks are there, each verified by its own, writes the manifest and puts the
        checkpoint in its place."""
        manifest = {
            "name": name,
            "position": {**asdict(position), "stage": position.stage.name.lower()},
            "files": dict(sorted(entries.items())),
            "torch": torch.__version__,
            **details,
        }
        self._finish(name, manifest)

    def _finish(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Sees that what was written of a checkpoint is there, writes its manifest and puts it in its place."""
        staging = self.staging(name)
        self._refuse_damage(staging, manifest["files"], hashed=False)
        self.storage.write(f"{staging}/{MANIFEST}", sealed(json.dumps(manifest, indent=1)))
        if staging == name:
            return
        if self.storage.exists(name):
            self.storage.rename(name, f".{name}.old")
        self.storage.rename(staging, name)
        self.storage.delete(f".{name}.old")

    def adopt(self, path: str) -> str:
        """Makes a stored checkpoint, of this run or of another, the newest here, and returns its name. Master.

        One of another run is copied and verified. Checkpoints that came after it, or are of another history, go once it
        is there: a resume would take them for its future. Call it while nobody saves.
        """
        folder, _, name = path.rpartition("/")
        here = self.names()
        if folder == self.storage.path:
            kept = here[: here.index(self.manifest(name)["name"]) + 1]
        else:
            self.copy_from(CheckpointStore(self.storage.at(folder)), name)
            kept = [name]
        index = self.index.read()
        index["owners"] = {owner: [one for one in names if one in kept] for owner, names in index["owners"].items()}
        index["owners"]["run"] = [name]
        index["labels"] = {
            label: one for label, one in index["labels"].items() if one in kept and folder == self.storage.path
        }
        self.index.write(index)
        for other in set(here) - set(kept):
            self.storage.delete(other)
        return name

    def copy_from(self, source: CheckpointStore, name: str) -> None:
        """Copies a checkpoint of another run, verified. It has no owner until somebody retains it, so it stays.
        Master."""
        manifest = source.manifest(name)
        self.discard_unfinished(name)

        def copy(file: str) -> None:
            def fill(writer: SummingWriter) -> None:
                for piece in source.storage.pieces(f"{name}/{file}"):
                    writer.write(piece)

            entry, expected = write_file(self.storage, self.staging(name), file, fill), manifest["files"][file]
            if entry != expected:
                raise CheckpointError(
                    f"checkpoint {source.path(name)}: {file} is damaged ({entry['bytes']} bytes, {expected['bytes']}"
                    " were written)"
                )

        self.storage.each(copy, manifest["files"])
        self._finish(name, manifest)

    def recover(self) -> None:
        """Puts back what a kill in the middle of a replacement left aside. Call it while nobody saves."""
        for folder in self.storage.names():
            name = folder.removeprefix(".").removesuffix(".old")
            if folder != f".{name}.old" or not self.storage.exists(f"{folder}/{MANIFEST}"):
                continue
            if self.storage.exists(name):
                self.storage.delete(folder)
            else:
                self.storage.rename(folder, name)

    def _refuse_damage(self, folder: str, entries: Mapping[str, Mapping[str, Any]], *, hashed: bool = True) -> None:
        """Raises CheckpointError where a file of a folder is missing or damaged."""
        reason = damage_in(self.storage, folder, entries, hashed=hashed)
        if reason:
            raise CheckpointError(f"{reason}{self._others(folder)}")

    def _others(self, name: str) -> str:
        """What else there is, to be used in place of a checkpoint."""
        others = [other for other in self.names() if other != name]
        return f"; there are also: {', '.join(others)}" if others else ""

    # Reading

    def path(self, name: str) -> str:
        """Where a checkpoint lies, without the options and keys of a URL."""
        return f"{self.storage.path}/{name}"

    def manifest(self, name: str) -> dict[str, Any]:
        """A checkpoint's manifest; raises CheckpointError where there is none, or no whole one."""
        try:
            return read_manifest(self.storage, name)
        except FileNotFoundError:
            there = ", ".join(self.names()) or "none"
            raise CheckpointError(f"no checkpoint '{name}' in {self.storage}; there are: {there}") from None
        except DamagedFile as error:
            raise CheckpointError(f"the manifest of '{name}' in {self.storage} is damaged: {error.what}") from error

    def names(self) -> list[str]:
        """The stored checkpoints, oldest first; those with a damaged manifest are left out."""
        names = [name for name in self.storage.names() if not name.startswith(".")]
        orders = dict(zip(names, self.storage.each(self._order, names), strict=True))
        return sorted((name for name in names if orders[name]), key=lambda name: orders[name] or ())

    def _order(self, name: str) -> tuple[int, Stage] | None:
        try:
            position = position_in(read_manifest(self.storage, name))
        except (FileNotFoundError, DamagedFile, CheckpointError):
            return None
        return position.step, position.stage

    def _folders(self) -> list[str]:
        """The folders of checkpoints, damaged or not. On a disk they come into their place with a manifest; elsewhere
        one without may be of a save that a kill cut short."""
        signs = {"model.pt", MANIFEST} if self.storage.local else {MANIFEST}
        inside = (path.partition("/") for path in self.storage.tree())
        return sorted({name for name, _, file in inside if file in signs and not name.startswith(".")})

    def latest(
        self, left_out: Callable[[str], None] = lambda reason: None, ranks: Ranks | None = None, *, hashed: bool = True
    ) -> str | None:
        """The newest checkpoint that is whole; None where there is none at all. `left_out` hears why others were passed
        over.

        With `ranks` all of them call it, and each reads a part of the files; without `hashed` files are only seen to be
        there in their sizes. Raises CheckpointError where there are some and none is whole.
        """
        ranks, reasons = ranks or Alone(), list[str]()
        for name, told in ranks.broadcast(self._candidates):
            reason = (
                str(told)
                if isinstance(told, CheckpointError)
                else damage_among(ranks, self.storage, name, told["files"], hashed=hashed)
            )
            if not reason:
                for earlier in reasons:
                    left_out(earlier)
                return str(name)
            reasons.append(reason)
        if reasons:
            raise CheckpointError("\n".join([f"none of the checkpoints in {self.storage} is whole:", *reasons]))
        return None

    def _candidates(self) -> list[tuple[str, dict[str, Any] | CheckpointError]]:
        """The folders of checkpoints, each with its manifest or what is wrong with it: first those, then from the
        newest on."""
        names = self.names()
        order = [*(name for name in self._folders() if name not in names), *reversed(names)]
        return [*zip(order, self.storage.each(self._manifest_or_error, order), strict=True)]

    def _manifest_or_error(self, name: str) -> dict[str, Any] | CheckpointError:
        try:
            return self.manifest(name)
        except CheckpointError as error:
            return error

    def clear(self) -> None:
        """Removes all checkpoints. Call it while nobody saves."""
        for name in self._folders():
            self.storage.delete(name)
        self.storage.delete(INDEX)

    def resolve(self, label: str) -> str:
        """The name behind `last`, the newest whose files are there in their sizes, a label such as `best`, or a name
        itself; raises CheckpointError where there is none."""
        labelled = self.index.read()["labels"].get(label)
        if labelled:
            return str(labelled)
        if label not in ("best", "last"):
            self.manifest(label)
            return label
        if label == "last":
            last = self.latest(lambda reason: _log.warning("left out: %s", reason), hashed=False)
            if last is None:
                raise CheckpointError(f"no checkpoint in {self.storage}")
            return last
        names = self.names()
        if not names:
            raise CheckpointError(f"no checkpoint in {self.storage}")
        raise CheckpointError(
            f"no checkpoint 'best' in {self.storage}, as none was validated by a metric of which it is known which way"
            " is better (hooks.checkpoint: {best: METRIC, mode: max}, or mode: min, says it); there are: last,"
            f" {', '.join(names)}"
        )

    def find_evaluated_weights(self, label: str) -> str:
        """Return where a checkpoint, by name or label, holds the evaluated weights: `model`, or `ema/model`.

        If validation ran with several sets of weights, these are the ones that gave the metric it is the best of, or
        else the experiment's main metric.
        """
        name, index = self.resolve(label), self.index.read()
        manifest, metrics = self.manifest(name), index.get("metrics", {})
        crowns = [label, *(one for one, crowned in index["labels"].items() if crowned == name)]
        metric = next((metrics[one] for one in crowns if one in metrics), manifest.get("main_metric", ""))
        evaluations = manifest.get("evaluations", {})
        evaluation = evaluation_of(metric, evaluations)
        lender = "" if evaluation is None else evaluations[evaluation]
        return f"{lender}/model" if lender else "model"

    def weights(self, label: str, place: str | None = None) -> dict[str, Any]:
        """Load and verify the evaluated weights of a checkpoint, or those at `place`, whole and on the CPU.

        Raises CheckpointError if there is no such checkpoint or it is damaged.
        """
        name, place = self.resolve(label), place or self.find_evaluated_weights(label)
        file = f"{place.partition('/')[0]}.pt"
        entries = self.manifest(name)["files"]
        self._refuse_damage(name, {one: entries[one] for one in entries if one == file or placeholders.has_shards(one)})
        found: dict[str, Any] = self._parts(name, {"model": place})["model"]
        return found

    def names_of(self, name: str, place: str) -> list[str]:
        """Return the names in a checkpoint's state dict at a place such as `ema/model`."""
        part, _, entry = place.partition("/")
        loaded = self.load(name, f"{part}.pt")
        return list(loaded[entry] if entry else loaded)

    def buffers(self, label: str) -> dict[str, Any]:
        """The buffers of rank 0, also those that no state dict holds (`persistent=False`); verified, as `weights`
        are."""
        name, file = self.resolve(label), "rank-0000.pt"
        entries = self.manifest(name)["files"]
        self._refuse_damage(name, {one: entries[one] for one in entries if one == file})
        found: dict[str, Any] = self.load(name, file)["buffers"]
        return found

    def verify(self, name: str) -> str:
        """The sha256 of a checkpoint's manifest, which has those of its files; raises CheckpointError where one of them
        is damaged."""
        self._refuse_damage(name, self.manifest(name)["files"])
        return self.fingerprint(name)

    def fingerprint(self, name: str) -> str:
        """The sha256 of a checkpoint's manifest."""
        return hashlib.sha256(self.storage.read(f"{name}/{MANIFEST}")).hexdigest()

    def position(self, name: str) -> Position:
        """How far the run had come."""
        return position_in(self.manifest(name))

    def load(self, name: str, file: str) -> Any:
        """Return the content of one file of a checkpoint, on the CPU. Loads tensors and plain data only; raises
        CheckpointError for all else."""
        try:
            with self.storage.fetched(f"{name}/{file}") as content:
                return placeholders.decode(torch.load(content, map_location="cpu", weights_only=True))
        except (OSError, EOFError, RuntimeError, UnpicklingError) as error:
            raise CheckpointError(f"{self.path(name)}/{file} cannot be loaded: {error}") from error

    def files(self, name: str) -> list[str]:
        """The files of a checkpoint."""
        return list(self.manifest(name)["files"])

    # What hooks may ask

    def retain(self, owner: str, names: Sequence[str]) -> None:
        """Says which checkpoints `owner` wants kept; deletes what it gave up and nobody wants."""
        with self.index.changing() as index:
            index["owners"][owner] = list(dict.fromkeys(names))

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        """Points labels at a stored checkpoint, which is the best of a metric where one is said."""
        with self.index.changing() as index:
            index["labels"].update(dict.fromkeys(labels, name))
            index["metrics"] = {**index.get("metrics", {}), **dict.fromkeys(labels if metric else (), metric)}

    def publish(self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]) -> str:
        """Write `<folder>/<run>-<hash>.pt` with parts of a checkpoint, each named and with its place: a file, or an
        entry of one (`ema/model`); `meta` is the manifest with `config`. `folder` is relative to the checkpoints."""
        if not self.master:
            return ""
        buffer = BytesIO()
        content = self._parts(name, {key: place for key, place in parts.items() if place != "meta"})
        if "meta" in parts.values():
            content["meta"] = {**self.manifest(name), "config": dict(config)}
        torch.save(content, buffer)
        target = f"{folder}/{self.run_name}-{name}-{hashlib.sha256(buffer.getvalue()).hexdigest()[:8]}.pt"
        self.storage.write(target, buffer.getvalue())
        return self.path(target)

    def _parts(self, name: str, parts: Mapping[str, str]) -> dict[str, Any]:
        """Parts of a checkpoint by their places, as `publish` has them, with the tensors that lie in shards."""
        available = {file.removesuffix(".pt"): file for file in shared_files(self.files(name))}
        content = {}
        for key, place in parts.items():
            part, _, entry = place.partition("/")
            if part not in available:
                raise CheckpointError(f"there is no {part} in '{name}'; it holds {', '.join(available)}")
            loaded = self.load(name, available[part])
            content[key] = loaded[entry] if entry else loaded
        return self.with_shards(name, content)

    def with_shards(self, name: str, content: dict[str, Any], mesh: Any = None) -> dict[str, Any]:
        """What files of a checkpoint hold, with its sharded tensors: this rank's shards of them on a mesh, or else the
        whole."""
        keys = [*placeholders.keys_in(content)]
        if not keys:
            return content
        from orchestrator.checkpoint import sharded_tensors as shards

        filled: dict[str, Any] = placeholders.filled(content, shards.read(self, name, keys, mesh))
        return filled


def shared_files(files: Iterable[str]) -> list[str]:
    """Those of a checkpoint's files that are of no rank alone."""
    return [file for file in files if not file.startswith("rank-") and not placeholders.has_shards(file)]
