"""The command that runs an experiment as a job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.sections.experiment import Experiment, check_run_name
from orchestrator.errors import UsageError
from orchestrator.storage import without_credentials


@dataclass(frozen=True)
class Job:
    """A run or a sweep as a job on a cluster."""

    experiment: Experiment
    config: str
    """Path of the experiment file, relative to the job's folder."""
    overrides: tuple[str, ...]
    storage: str
    name: str

    @property
    def command(self) -> str:
        """Command line of the job, relative to its folder."""
        verb = "run" if self.experiment.sweep is None else "sweep"
        options = ["--storage", self.storage, "--name", self.name]
        return shlex.join(["python", "-m", "orchestrator", verb, self.config, *self.overrides, *options])


def make_job(
    experiment: Experiment, config: Path, overrides: Sequence[str], storage: str, name: str | None, folder: Path
) -> Job:
    """Return the job of an experiment in a folder.

    Raises UsageError for files outside the folder, a package that would hide one of Hookyard's, a relative storage,
    and a storage with keys.
    """
    for package in ("hooks", "orchestrator"):
        if (folder / package / "__init__.py").is_file() and not (folder / "orchestrator/__main__.py").is_file():
            raise UsageError(
                f"{folder / package} would hide Hookyard's own package: a job's folder comes first on its import path. "
                f"Rename it, for example to my_{package}"
            )
    outside = [path for path in experiment.import_paths if not Path(path).is_relative_to(folder)]
    if outside or not config.resolve().is_relative_to(folder):
        raise UsageError(
            f"{outside[0] if outside else config} is outside of {folder}, and only that folder is sent. Call submit"
            " in a folder above both"
        )
    if "://" not in storage and not Path(storage).is_absolute():
        raise UsageError(
            f"storage '{storage}' is relative to the job's temporary folder, which is deleted. Use one that every node"
            " sees: --storage s3://bucket/runs, or the absolute path of a network folder"
        )
    if without_credentials(storage) != storage:
        raise UsageError(
            f"storage {without_credentials(storage)} contains keys, and everyone on the cluster can read a job's"
            " command. Give the nodes a role that may write there, or list variables (AWS_ACCESS_KEY_ID ...) in the"
            " experiment's `environment`"
        )
    path = config.resolve().relative_to(folder).as_posix()
    return Job(experiment, path, tuple(overrides), storage, check_run_name(experiment, name))
