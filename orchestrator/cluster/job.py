"""A job: the command that runs an experiment on a cluster. Pure; shared by Ray's jobs and KubeRay's."""

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
    """A run or a sweep, as a job's process on the cluster gets it."""

    experiment: Experiment
    config: str
    """Its file, by its path in the folder that is sent."""
    overrides: tuple[str, ...]
    storage: str
    name: str

    @property
    def command(self) -> str:
        """What the job's process runs, in the folder that was sent."""
        verb = "run" if self.experiment.sweep is None else "sweep"
        words = [
            "python",
            "-m",
            "orchestrator",
            verb,
            self.config,
            *self.overrides,
            "--storage",
            self.storage,
            "--name",
            self.name,
        ]
        return shlex.join(words)


def described(
    experiment: Experiment, config: Path, overrides: Sequence[str], storage: str, name: str | None, folder: Path
) -> Job:
    """The job of an experiment whose files lie in a folder.

    Raises UsageError where a file lies elsewhere or has a name of Hookyard's, or where the storage would go with the
    job or show its keys.
    """
    for own in ("hooks", "orchestrator"):
        if (folder / own / "__init__.py").is_file() and not (folder / "orchestrator/__main__.py").is_file():
            raise UsageError(
                f"{folder / own} would be found before Hookyard's own package in a job, whose folder comes first; "
                f"give it another name, such as my_{own}"
            )
    outside = [path for path in experiment.import_paths if not Path(path).is_relative_to(folder)]
    if outside or not config.resolve().is_relative_to(folder):
        raise UsageError(
            f"{outside[0] if outside else config} lies outside of {folder}, and only that folder is sent; call submit"
            " above both"
        )
    if "://" not in storage and not Path(storage).is_absolute():
        raise UsageError(
            f"storage '{storage}' would be in the job's own folder, and go with it. Give a place that every node sees: "
            "--storage s3://bucket/runs, or a network folder by its absolute path"
        )
    if without_credentials(storage) != storage:
        raise UsageError(
            f"storage {without_credentials(storage)} was given with keys, and a job's command can be read by all who"
            " see its cluster. Give the nodes a role that may write there, or name variables (AWS_ACCESS_KEY_ID ...)"
            " in the experiment's environment"
        )
    return Job(
        experiment,
        config.resolve().relative_to(folder).as_posix(),
        tuple(overrides),
        storage,
        check_run_name(experiment, name),
    )
