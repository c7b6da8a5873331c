"""Reading the checkpoints of a run: finding, verifying and loading them."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hooks.metrics.names import find_evaluation_label
from hooks.position import Position
from orchestrator.disk.checkpoints import placeholders
from orchestrator.disk.checkpoints.index import read_index
from orchestrator.disk.checkpoints.listing import read_checkpoints, read_manifest_or_error
from orchestrator.disk.checkpoints.manifest import (
    MANIFEST,
    Entries,
    RankGroup,
    find_damage,
    parse_position,
)
from orchestrator.disk.torch_files import load_torch_file
from orchestrator.errors import CheckpointError
from orchestrator.nearest_names import did_you_mean
from orchestrator.storage import Storage

_log = logging.getLogger("hookyard")


class LatestCheckpoint(NamedTuple):
    """The newest intact checkpoint of a run."""

    name: str | None
    """None if there are no checkpoints."""
    skip_reasons: Sequence[str]
    """The damage of each newer checkpoint."""


class CheckpointReader:
    """The checkpoints of one run, to read; changes nothing.

    `explain_missing` returns the end of a message: why `best` or `last` is missing.
    """

    def __init__(
        self, storage: Storage, explain_missing: Callable[[str], str] = lambda label: ""
    ) -> None:
        self.storage = storage
        self._explain_missing = explain_missing

    def read_index(self) -> dict[str, Any]:
        """Return the owners and labels of the checkpoints; raises DamagedFile."""
        return read_index(self.storage)

    # Finding checkpoints

    def get_path(self, name: str) -> str:
        """Return the path of a checkpoint, without a URL's query options and credentials."""
        return f"{self.storage.path}/{name}"

    def list_names(self) -> list[str]:
        """Return the stored checkpoints with an intact manifest, oldest first."""
        return [*read_checkpoints(self.storage)[0]]

    def find_latest(
        self, group: RankGroup | None = None, *, check_hashes: bool = True
    ) -> LatestCheckpoint:
        """Return the newest intact checkpoint. Raises CheckpointError if all are damaged.

        Collective with `group`: each rank reads a share of the files. Compares only sizes without
        `check_hashes`.
        """
        read = partial(read_checkpoints, self.storage)
        manifests, errors = group.broadcast(read) if group else read()
        reasons = [str(error) for error in errors.values()]
        for name in reversed(manifests):
            entries = manifests[name]["files"]
            reason = find_damage(self.storage, name, entries, group, check_hashes=check_hashes)
            if not reason:
                return LatestCheckpoint(name, reasons)
            reasons.append(reason)
        if reasons:
            lines = [f"none of the checkpoints in {self.storage} is intact:", *reasons]
            raise CheckpointError("\n".join(lines))
        return LatestCheckpoint(None, [])

    def resolve(self, label: str) -> str:
        """Return a checkpoint's name, given that name or a label such as `best`; raises
        CheckpointError.

        `last` is the newest checkpoint whose files have the right sizes.
        """
        target = self.read_index()["labels"].get(label)
        if target:
            self.read_manifest(str(target))
            return str(target)
        if label not in ("best", "last"):
            self.read_manifest(label)
            return label

        name = self._find_last() if label == "last" else None
        if name is None:
            raise self._make_missing_error(label)
        return name

    def _find_last(self) -> str | None:
        """Return the newest checkpoint whose files have the right sizes; None if there are none.
        Logs why newer ones were skipped."""
        last = self.find_latest(check_hashes=False)
        for reason in last.skip_reasons:
            _log.warning("skipped: %s", reason)
        return last.name

    def _make_missing_error(self, label: str) -> CheckpointError:
        """Return the error of a missing `best` or `last`."""
        names = self.list_names()
        if not names:
            reason = self._explain_missing("last")  # without any, none could be the best
            return CheckpointError(f"no checkpoint in {self.storage}{reason}")
        available = ", ".join(["last", *names])
        return CheckpointError(
            f"no checkpoint '{label}' in {self.storage}{self._explain_missing(label)}; available: {available}"
        )

    # Verifying

    def verify(self, name: str) -> str:
        """Read all files of a checkpoint, and return its fingerprint; raises CheckpointError if one
        is damaged."""
        self.check_files(name, self.read_manifest(name)["files"])
        return self.compute_fingerprint(name)

    def compute_fingerprint(self, name: str) -> str:
        """Return the sha256 of a checkpoint's manifest, which contains the hashes of its files."""
        return hashlib.sha256(self.storage.read(f"{name}/{MANIFEST}")).hexdigest()

    def check_files(self, folder: str, entries: Entries, *, check_hashes: bool = True) -> None:
        """Raise CheckpointError for the first damaged file; not `check_hashes` compares only sizes."""
        reason = find_damage(self.storage, folder, entries, check_hashes=check_hashes)
        if not reason:
            return
        raise CheckpointError(f"{reason}{self._name_others(folder)}")

    def _name_others(self, name: str) -> str:
        """Return the end of a message: which checkpoints there are besides a damaged one."""
        others = [other for other in self.list_names() if other != name]
        return f"; other checkpoints: {', '.join(others)}" if others else ""

    # Reading

    def read_manifest(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's manifest; raises CheckpointError if it is missing or damaged."""
        manifest = read_manifest_or_error(self.storage, name)
        if isinstance(manifest, CheckpointError):
            raise manifest
        if manifest is not None:
            return manifest

        available = self.list_names()
        if available:
            available = [*self.read_index()["labels"], "last", *available]
        nearest = did_you_mean(name, available)
        hint = f" ({nearest})" if nearest else ""
        raise CheckpointError(
            f"no checkpoint '{name}' in {self.storage}; available: {', '.join(available) or 'none'}{hint}"
        )

    def read_position(self, name: str) -> Position:
        """Return the training progress at a checkpoint."""
        return parse_position(self.read_manifest(name)["position"])

    def load(self, name: str, file: str) -> Any:
        """Load a checkpoint file onto the CPU: tensors and plain data. Raises CheckpointError for
        anything else."""
        path = f"{self.get_path(name)}/{file}"
        try:
            with self.storage.open_copy(f"{name}/{file}") as content:
                return load_torch_file(content, path, placeholders.decode)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be loaded: {error}{self._name_others(name)}"
            ) from error
        except CheckpointError as error:
            raise CheckpointError(f"{error}{self._name_others(name)}") from error

    def find_evaluated_weights(self, name: str, label: str = "") -> str:
        """Return the key of the weights used for validation: `model`, or that of a hook, such as
        `ema/model`.

        If several were validated, they are those of the metric for which the checkpoint was kept,
        or else of the experiment's main metric.

        Args:
            name: Name of the checkpoint.
            label: Label by which it was chosen, if any, such as `best`.
        """
        manifest = self.read_manifest(name)
        metric = self._find_metric_of_label(label, name)
        if metric is None:
            metric = manifest["main_metric"]

        evaluations = manifest["evaluations"]
        evaluation = find_evaluation_label(metric, evaluations)
        hook = "" if evaluation is None else evaluations[evaluation]
        return f"{hook}/model" if hook else "model"

    def _find_metric_of_label(self, label: str, name: str) -> str | None:
        """Return the metric by which a label such as `best` was given; without one, that of another
        label of the same checkpoint."""
        index = self.read_index()
        metrics: Mapping[str, str] = index.get("metrics", {})
        others = [other for other, target in index["labels"].items() if target == name]
        return next((metrics[known] for known in (label, *others) if known in metrics), None)
