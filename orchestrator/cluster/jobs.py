"""Jobs on a Ray cluster: submit, follow and stop them through Ray's Jobs API."""

import asyncio
import logging
import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.engines.ray_connection import get_first_sentence
from orchestrator.engines.ray_environment import read_environment, set_environment
from orchestrator.errors import RunError, UsageError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.experiment.sections.run_name import choose_run_name
from orchestrator.storage import without_credentials

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
"""Statuses after which a job does not change."""
EXCLUDES = ["/runs", "/checkpoints", ".git", ".venv", "venv", "__pycache__"]
"""Patterns of files that Ray does not upload, besides those in .gitignore and .rayignore."""


@dataclass(frozen=True)
class Job:
    """A run or a sweep as a job on a cluster."""

    name: str
    command: str
    """Command line, relative to the job's folder."""
    environment: Sequence[str]
    """Names of the environment variables to pass on."""


@dataclass(frozen=True)
class Submission:
    """A run or a sweep to submit, as the command line asks for it."""

    experiment: Experiment
    config: Path
    overrides: Sequence[str]
    storage: str
    name: str

    @classmethod
    def load(
        cls, config: Path, overrides: Sequence[str], storage: str, name: str | None
    ) -> "Submission":
        """Load the experiment, and check the name of its run; raises ConfigError or UsageError."""
        experiment = load_experiment(config, overrides)
        return cls(experiment, config, overrides, storage, choose_run_name(name, experiment.name))

    def list_arguments(self, config: str, storage: str) -> list[str]:
        """Return the arguments of `hookyard` that run the experiment, with a file and a storage as
        the job sees them."""
        verb = "run" if self.experiment.sweep is None else "sweep"
        return [verb, config, *self.overrides, "--storage", storage, "--name", self.name]


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


def check_storage(storage: str) -> None:
    """Raise UsageError for a storage that contains keys."""
    if without_credentials(storage) != storage:
        raise UsageError(
            f"storage {without_credentials(storage)} contains keys, which everyone on the cluster "
            "could read; give the nodes a role, or list variables such as AWS_ACCESS_KEY_ID in "
            "`environment`"
        )


@dataclass(frozen=True)
class Status:
    """State of a job."""

    job: str
    status: str
    """PENDING, RUNNING, or one of ENDED."""
    message: str
    exit_code: int | None
    """Exit code of the job's process; None while it runs, or if it never started."""
    entrypoint: str


class Jobs:
    """The jobs of the cluster whose dashboard is at an address, such as http://127.0.0.1:8265.

    Raises UsageError if ray[default] is missing, nobody answers, or the token is wrong.
    """

    def __init__(self, address: str | None) -> None:
        self.address = _find_dashboard_url(address)
        self.flags = f" --address {self.address}"
        if find_spec("aiohttp") is None:
            raise UsageError(
                "jobs need Ray's dashboard client, which is missing: "
                "pip install 'hookyard[cluster]'"
            )
        set_environment(self.address)
        with self._explain_errors():
            from ray.job_submission import JobSubmissionClient

            self._client: Any = JobSubmissionClient(self.address)
        # Ray would log each upload and the end of each log.
        logging.getLogger("ray.dashboard").setLevel(logging.WARNING)

    @contextmanager
    def _explain_errors(self, job: str | None = None) -> Iterator[None]:
        """Turn errors of the connection, or about a job, into a UsageError or a RunError."""
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise UsageError(
                f"the cluster at {self.address} needs its token: {get_first_sentence(error)}; "
                "set RAY_AUTH_TOKEN, or RAY_AUTH_MODE=disabled if it has none"
            ) from error
        except (ConnectionError, requests.exceptions.RequestException) as error:
            raise UsageError(
                f"no cluster answers at {self.address}: {get_first_sentence(error)}; "
                "check its dashboard and the network"
            ) from error
        except RuntimeError as error:
            text = str(error)
            if job and "does not exist" in text:
                raise UsageError(f"the cluster at {self.address} has no job '{job}'") from error
            if "status code 413" in text:
                raise UsageError(
                    "the folder is larger than the 100 MiB that can be sent; "
                    "exclude files in .gitignore or .rayignore"
                ) from error
            if "No available agent" in text:
                raise RunError(
                    f"the cluster at {self.address} has no agent for jobs; "
                    "if it has just started, try again, else read the head's dashboard_agent.log"
                ) from error
            raise RunError(f"the cluster at {self.address} answers: {text}") from error

    def submit(self, job: Job, folder: Path) -> str:
        """Send the folder, start the job in it, and return the job's name."""
        request = {
            "entrypoint": job.command,
            "submission_id": f"{job.name}-{uuid.uuid4().hex[:6]}",
            "runtime_env": {
                "working_dir": str(folder),
                "excludes": EXCLUDES,
                "env_vars": read_environment(job.environment),
            },
            "metadata": {"hookyard": job.name},
        }
        with self._explain_errors():
            return str(self._client.submit_job(**request))

    def status(self, job: str) -> Status:
        """Return the status of a job; raises UsageError for an unknown one."""
        with self._explain_errors(job):
            info = self._client.get_job_info(job)
            return Status(
                job,
                str(info.status.value),
                info.message or "",
                info.driver_exit_code,
                info.entrypoint,
            )

    def log(self, job: str) -> str:
        with self._explain_errors(job):
            log: str = self._client.get_job_logs(job)
            return log

    def stop(self, job: str) -> None:
        """Ask a job to save a checkpoint and end."""
        with self._explain_errors(job):
            self._client.stop_job(job)

    def follow(self, job: str, show: Callable[[str], None]) -> Status:
        """Show the log of a job until it has ended; raises RunError if the connection breaks."""

        async def tail() -> None:
            async for text in self._client.tail_job_logs(job):
                show(text)

        # The status says whether the job continues.
        with suppress(RuntimeError, OSError):
            asyncio.run(tail())
        status = self.status(job)
        if status.status not in ENDED:
            raise RunError(
                f"lost the connection to {self.address}; {job} continues. "
                f"To follow it: hookyard logs {job} --follow{self.flags}"
            )
        return status


def _find_dashboard_url(address: str | None) -> str:
    url = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not url:
        raise UsageError(
            "no cluster given: use --address http://127.0.0.1:8265, or set RAY_API_SERVER_ADDRESS"
        )
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"expected the URL of the cluster's dashboard, got '{url}': "
            "--address http://127.0.0.1:8265"
        )
    return url
