"""The job of a Ray cluster that runs an experiment."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cluster.submission import Submission, check_storage
from orchestrator.errors import UsageError


@dataclass(frozen=True)
class Job:
    """A run or a sweep as a job on a cluster."""

    name: str
    command: str
    """Command line, relative to the job's folder."""
    environment: Sequence[str]
    """Names of the environment variables to pass on."""


def make_job(submission: Submission, folder: Path) -> Job:
    """Return the job of an experiment in a folder.

    Raises UsageError for files outside the folder, a package that hides Hookyard's, and a relative
    storage or keys.
    """
    config = submission.config.resolve()
    storage = submission.storage
    _check_folder(folder, [*submission.experiment.import_paths, str(config)])
    if "://" not in storage and not Path(storage).is_absolute():
        raise UsageError(
            f"storage '{storage}' must be an absolute path that all nodes can reach, "
            "or a URL like s3://..."
        )
    check_storage(storage)
    arguments = submission.list_arguments(config.relative_to(folder).as_posix(), storage)
    command = shlex.join(["python", "-m", "orchestrator", *arguments])
    return Job(submission.name, command, submission.experiment.environment)


def _check_folder(folder: Path, needed: Sequence[str]) -> None:
    """Raise UsageError if the folder lacks a needed file, or has a package of Hookyard's name."""
    is_hookyard = (folder / "orchestrator/__main__.py").is_file()
    for package in ("hooks", "orchestrator"):
        if (folder / package / "__init__.py").is_file() and not is_hookyard:
            raise UsageError(
                f"{folder / package} would hide Hookyard's own package; "
                f"rename it, for example to my_{package}"
            )
    for path in needed:
        if not Path(path).is_relative_to(folder):
            raise UsageError(f"{path} is outside of {folder}, the folder that submit sends")
