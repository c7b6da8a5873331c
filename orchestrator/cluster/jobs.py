"""Jobs on a Ray cluster: sent through its Jobs API, followed, stopped. On the machine that sends them."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any

from hooks.error_text import named_text
from orchestrator.cluster.job import Job
from orchestrator.cluster.packing import Pack
from orchestrator.engines.ray_environment import environment_values, set_environment
from orchestrator.errors import RunError, UsageError
from orchestrator.terminal.display import say

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
"""Statuses after which a job does not change."""

_AGAIN_S = 2.0
_AGAIN_TIMES = 30
_AGENT_TIMES = 6
"""How often a cluster is asked that has no agent for jobs yet; each time it looks for one for 10 s."""


@dataclass(frozen=True)
class Status:
    """How a job fares."""

    job: str
    status: str
    """PENDING, RUNNING, or one of OVER."""
    message: str
    exit_code: int | None
    """Of the job's process; None while it runs, or where it never did."""
    entrypoint: str


class Jobs:
    """The jobs of the cluster whose dashboard is at an address, such as http://127.0.0.1:8265.

    Raises UsageError, before anything is sent, where ray[default] is missing, nobody answers, or the token is wrong.
    """

    def __init__(self, address: str | None) -> None:
        self.address = _dashboard(address)
        if find_spec("aiohttp") is None:
            raise UsageError(
                "jobs need Ray's dashboard and its client, which are not installed: pip install 'hookyard[cluster]'"
            )
        set_environment(self.address)
        with self._answers():
            from ray.job_submission import JobSubmissionClient

            self._client: Any = JobSubmissionClient(self.address)
        # Ray logs each upload and of each line that ends.
        logging.getLogger("ray.dashboard").setLevel(logging.WARNING)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Tells what goes wrong between here and the cluster in one message."""
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise UsageError(
                f"the cluster at {self.address} asks for its token: {_first_line(error)}. Give the one it was started"
                " with in RAY_AUTH_TOKEN or ~/.ray/auth_token (RAY_AUTH_TOKEN_PATH); RAY_AUTH_MODE=disabled is for one"
                " that has none"
            ) from error
        except (ConnectionError, requests.exceptions.RequestException) as error:
            raise UsageError(
                f"no cluster answers at {self.address}: {_first_line(error)}. Is its dashboard up (ray[default] on the"
                " head), and does a tunnel lead to it (ray dashboard cluster.yaml, kubectl port-forward)?"
            ) from error

    def submit(self, job: Job, files: Pack, *, pause: Callable[[float], None] = sleep) -> str:
        """Sends the files, starts the job, and returns its name."""
        environment = environment_values(job.experiment.environment)
        with tempfile.TemporaryDirectory() as folder, self._answers():
            archive = Path(folder) / "working-folder.zip"
            files.write(archive)
            return self._submitted(
                pause,
                entrypoint=job.command,
                submission_id=f"{job.name}-{uuid.uuid4().hex[:6]}",
                runtime_env={"working_dir": str(archive), "env_vars": environment},
                metadata={"hookyard": job.name},
            )

    def _submitted(self, pause: Callable[[float], None], **job: Any) -> str:
        """The name of a job that was taken; a cluster that has just begun is asked again until its agents are there."""
        for tried in range(_AGENT_TIMES):
            if tried:
                say(f"the cluster at {self.address} has no agent yet that takes jobs; asking again")
                pause(_AGAIN_S)
            try:
                return str(self._client.submit_job(**job))
            except RuntimeError as error:
                if "No available agent" not in str(error):
                    raise RunError(f"the cluster at {self.address} does not take the job: {error}") from error
        raise RunError(
            f"the cluster at {self.address} has no agent that takes jobs. Where another Ray runs on the head's machine,"
            " it may hold the agent's port: start this one with --dashboard-agent-listen-port. The head's"
            " dashboard_agent.log says what is wrong"
        )

    def status(self, job: str) -> Status:
        """How a job fares; raises UsageError where the cluster knows none of that name."""
        with self._answers(), self._known(job):
            info = self._client.get_job_info(job)
            return Status(job, str(info.status.value), info.message or "", info.driver_exit_code, info.entrypoint)

    def log(self, job: str) -> str:
        """What a job has written so far."""
        with self._answers(), self._known(job):
            log: str = self._client.get_job_logs(job)
            return log

    def stop(self, job: str) -> None:
        """Asks a job to save and end."""
        with self._answers(), self._known(job):
            self._client.stop_job(job)

    def follow(self, job: str, show: Callable[[str], None], *, pause: Callable[[float], None] = sleep) -> Status:
        """Shows what a job writes until it is over; takes the line up again where it breaks."""
        shown = 0
        for _ in range(_AGAIN_TIMES):
            behind = shown

            async def take() -> None:
                nonlocal behind, shown
                # A new line begins with the log's beginning.
                async for text in self._client.tail_job_logs(job):
                    fresh, behind = text[behind:], max(0, behind - len(text))
                    shown += len(fresh)
                    show(fresh)

            try:
                asyncio.run(take())
            except (RuntimeError, OSError):
                pause(_AGAIN_S)
            now = self.status(job)
            if now.status in OVER:
                show(self.log(job)[shown:])
                return now
        raise RunError(
            f"the line to {self.address} breaks again and again; {job} goes on: hookyard logs {job} --address"
            f" {self.address}"
        )

    @contextmanager
    def _known(self, job: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "does not exist" not in str(error):
                raise RunError(f"the cluster at {self.address} answers: {error}") from error
            raise UsageError(f"the cluster at {self.address} knows no job '{job}'") from error


def _first_line(error: Exception) -> str:
    return named_text(error).removeprefix(f"{type(error).__name__}: ").splitlines()[0].split(". ")[0].rstrip(".:")


def _dashboard(address: str | None) -> str:
    """The URL of the dashboard that was asked for, else that of RAY_API_SERVER_ADDRESS."""
    chosen = address or os.environ.get("RAY_API_SERVER_ADDRESS")
    if not chosen:
        raise UsageError("say where the cluster is: --address http://127.0.0.1:8265, or RAY_API_SERVER_ADDRESS")
    if not chosen.startswith(("http://", "https://")):
        raise UsageError(
            f"jobs go to the cluster's dashboard, and '{chosen}' is no URL: --address http://127.0.0.1:8265"
        )
    return chosen
