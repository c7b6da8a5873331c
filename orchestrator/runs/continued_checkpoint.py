"""The checkpoint from which training continues, and whether an experiment fits it. Used in the
driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hooks.optimizer_name import OptimizerName
from orchestrator.disk.checkpoints.manifest import list_optimizers
from orchestrator.disk.metadata import EngineName
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import UsageError
from orchestrator.experiment.optimizations import list_optimizations
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.workers import Workers
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.units import format_count


@dataclass(frozen=True)
class ContinuedCheckpoint:
    """A checkpoint from which a run continues: of the run itself, or of another one."""

    folder: RunFolder
    """The run that has saved it."""
    name: str
    path: str
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, folder: RunFolder, name: str) -> Self:
        """Return a checkpoint of a run; raises CheckpointError if there is none of this name."""
        store = open_checkpoints(folder)
        return cls(folder, name, store.get_path(name), store.read_manifest(name))

    def check_optimizers(self, experiment: Experiment) -> None:
        """Raise UsageError if its optimizers differ from those of the experiment."""
        entries_by_name = list_optimizers(self.manifest)
        stored = {
            key: entries.get("optimizer", {}).get("type")
            for key, entries in entries_by_name.items()
        }
        needed = {
            key: optimization.optimizer.type
            for key, optimization in list_optimizations(experiment).items()
        }
        if None in stored.values() or stored == needed:
            return
        raise UsageError(
            f"{self.path} has the state of {_join_kinds(stored)}, not of {_join_kinds(needed)};"
            f" keep the optimizer, or load only the weights: init.from={self.folder}@{self.name}"
        )

    def check_processes(self, experiment: Experiment, engine: EngineName) -> None:
        """Raise UsageError if it has state of single ranks or DataLoader workers, and their number
        has changed."""
        self._check_ranks(experiment.workers, engine)
        self._check_loader_workers(experiment.loader.num_workers)

    def _check_ranks(self, workers: Workers, engine: EngineName) -> None:
        ranks = _get_rank_count(workers, engine)
        stored_ranks = self.manifest["world_size"]
        state = self._describe_rank_state()
        if ranks in (None, stored_ranks) or state is None:
            return
        advice = (
            f"use {stored_ranks} (workers.count={stored_ranks}; resume --workers {stored_ranks})"
        )
        if engine == "in-process":
            advice = "leave out --local (local=True)"
        raise UsageError(
            f"{state}, and {self.path} is of {format_count(stored_ranks, 'rank')}, not"
            f" {ranks}; {advice}, or start another run"
        )

    def _check_loader_workers(self, loader_workers: int) -> None:
        stored_workers = self.manifest.get("loader_workers")
        if stored_workers is None or loader_workers == stored_workers:
            return
        raise UsageError(
            "the train data is iterable, and each DataLoader worker has its own place in it, and"
            f" {self.path} needs loader.num_workers={stored_workers}"
        )

    def _describe_rank_state(self) -> str | None:
        """Say which of its state belongs to single ranks; None if there is none."""
        if self._has_iterable_train_data():
            return "the train data is iterable, and each rank has its own place in it"
        parts = self.manifest.get("per_rank")
        if parts:
            return f"session.restore() has parts of each rank ({', '.join(parts)})"
        return None

    def _has_iterable_train_data(self) -> bool:
        has_train_data = "train" in self.manifest.get("phases", ())
        return has_train_data and "train" not in self.manifest.get("data", ("train",))


def _join_kinds(kinds: Mapping[OptimizerName, str | None]) -> str:
    return ", ".join(f"{key} ({kind})" if key else str(kind) for key, kind in kinds.items())


def _get_rank_count(workers: Workers, engine: EngineName) -> int | None:
    """Return the number of ranks; None if the cluster decides it."""
    if engine == "in-process":
        return 1
    return workers.max_count if workers.min_count == workers.max_count else None
