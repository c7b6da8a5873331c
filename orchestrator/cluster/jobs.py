"""The jobs of a Ray cluster: submit, follow and stop them through Ray's Jobs API."""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestrator.cluster.job import Job
from orchestrator.cluster.job_status import ENDED, JobStatus
from orchestrator.engines.ray_connection import get_first_sentence
from orchestrator.engines.ray_environment import read_environment, set_environment
from orchestrator.errors import RunError, UsageError
from orchestrator.process.streams import print_line

EXCLUDES = ["/runs", "/checkpoints", ".git", ".venv", "venv", "__pycache__"]
"""Patterns of files that Ray does not upload, besides those in .gitignore and .rayignore."""


class Jobs:
    """The jobs of the cluster whose dashboard is at an address, such as http://127.0.0.1:8265.

    Raises UsageError if ray[default] is missing, nobody answers, or the token is wrong.
    """

    def __init__(self, address: str | None) -> None:
        self.address = _find_dashboard_url(address)
        self.flags = f" --address {self.address}"
        """What commands about a job need besides its name."""
        if find_spec("aiohttp") is None:
            raise UsageError(
                "jobs need Ray's dashboard client, which is missing: "
                "pip install 'hookyard[cluster]'"
            )
        set_environment(self.address)
        with self._translating_errors():
            from ray.job_submission import JobSubmissionClient

            self._client: Any = JobSubmissionClient(self.address)
        # Ray would log each upload and the end of each log.
        logging.getLogger("ray.dashboard").setLevel(logging.WARNING)

    @contextmanager
    def _translating_errors(self, job: str | None = None) -> Iterator[None]:
        """Raise errors of the connection, or about a job, as a UsageError or a RunError."""
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
        with self._translating_errors():
            return str(self._client.submit_job(**request))

    def status(self, job: str) -> JobStatus:
        """Return the status of a job; raises UsageError for an unknown one."""
        with self._translating_errors(job):
            info = self._client.get_job_info(job)
            return JobStatus(
                job,
                str(info.status.value),
                info.message or "",
                info.driver_exit_code,
                info.entrypoint,
            )

    def log(self, job: str) -> str:
        with self._translating_errors(job):
            log: str = self._client.get_job_logs(job)
            return log

    def stop(self, job: str) -> None:
        """Ask a job to save a checkpoint and end."""
        with self._translating_errors(job):
            self._client.stop_job(job)

    def follow(self, job: str, show: Callable[[str], None]) -> JobStatus:
        """Show the log of a job until it has ended; raises RunError if the connection breaks before
        that."""
        failure = asyncio.run(self._show_log(job, show))
        # The status says whether the job continues.
        status = self.status(job)
        if status.status not in ENDED:
            raise RunError(
                f"lost the connection to {self.address}; {job} continues. "
                f"To follow it: hookyard logs {job} --follow{self.flags}"
            ) from failure
        if failure:
            print_line(
                f"lost the connection to {self.address} before the end of the log. "
                f"To see all of it: hookyard logs {job}{self.flags}"
            )
        return status

    async def _show_log(self, job: str, show: Callable[[str], None]) -> Exception | None:
        """Show the log of a job as it grows; return the error that ended the connection, if any."""
        texts = self._client.tail_job_logs(job)
        while True:
            try:
                text = await anext(texts)
            except StopAsyncIteration:
                return None
            except Exception as error:  # Ray passes on what its HTTP client raises
                return error
            # An error of the output, such as a closed pipe, says nothing about the connection.
            show(text)


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
