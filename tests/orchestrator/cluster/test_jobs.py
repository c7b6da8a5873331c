"""Jobs, with a stand-in for Ray's client; the real one is in tests/ray."""

import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cluster import jobs as module
from orchestrator.cluster.job import Job
from orchestrator.cluster.jobs import Jobs
from orchestrator.errors import RunError, UsageError
from tests.tasks import described

pytest.importorskip("aiohttp", reason="needs ray[default], which the extra cluster brings")

ADDRESS = "http://127.0.0.1:8265"


class Cluster:
    """What the stand-in's client talks to."""

    def __init__(self) -> None:
        self.refuses: Exception | None = None
        self.declines = ""
        """What is said instead of taking a job."""
        self.log = "one\ntwo\nthree\n"
        self.breaks: Exception | None = None
        """How the connection breaks while the log is shown."""
        self.status, self.exit_code = "SUCCEEDED", 0
        self.submitted: dict[str, Any] = {}
        self.stopped: list[str] = []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    import ray.job_submission

    cluster = Cluster()

    class Client:
        def __init__(self, address: str) -> None:
            assert address == ADDRESS
            if cluster.refuses:
                raise cluster.refuses

        def submit_job(self, **given: Any) -> str:
            if cluster.declines:
                raise RuntimeError(cluster.declines)
            cluster.submitted = given
            return str(given["submission_id"])

        def get_job_info(self, job: str) -> Any:
            self._known(job)
            status = SimpleNamespace(value=cluster.status)
            return SimpleNamespace(
                status=status,
                message="told",
                driver_exit_code=cluster.exit_code,
                entrypoint="python",
            )

        def get_job_logs(self, job: str) -> str:
            self._known(job)
            return cluster.log

        async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
            for line in cluster.log.splitlines(keepends=True):
                yield line
                if cluster.breaks:
                    raise cluster.breaks

        def stop_job(self, job: str) -> None:
            self._known(job)
            cluster.stopped.append(job)

        def _known(self, job: str) -> None:
            if job != "known":
                raise RuntimeError(
                    f"Request failed with status code 404: Job {job} does not exist."
                )

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Client)
    return cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "points.yaml").write_text("name: points")
    return tmp_path


def job(**changes: Any) -> Job:
    return Job("points", "python -m orchestrator run points.yaml", described(**changes).environment)


def test_job_is_sent_with_folder_command_and_variables(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    monkeypatch.setenv("OTHER_KEY", "hunter3")
    named = Jobs(ADDRESS).submit(job(environment=["WANDB_API_KEY"]), folder)
    assert named.startswith("points-")
    assert cluster.submitted["entrypoint"] == job().command
    assert cluster.submitted["runtime_env"]["env_vars"] == {"WANDB_API_KEY": "hunter2"}
    assert cluster.submitted["runtime_env"]["working_dir"] == str(folder)


def test_ray_sends_the_code_without_ignored_files_runs_and_environments(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package

    files = {"study/task.py", ".gitignore", "checkpointing/here.py", "study/runs/kept.py"}
    left = {
        "weights.bin",
        "runs/first/run.json",
        "checkpoints/epoch-0001/model.pt",
        ".venv/lib/module.py",
    }
    for name in files | left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("*.bin\n")
    target = tmp_path.parent / f"{tmp_path.name}.zip"
    create_package(str(tmp_path), target, include_gitignore=True, excludes=module.EXCLUDES)
    with zipfile.ZipFile(target) as archive:
        assert {name for name in archive.namelist() if not name.endswith("/")} == files


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            "No available agent to submit job, please try again later.",
            RunError,
            r"has no agent for jobs.*dashboard_agent\.log",
        ),
        ("runtime_env is broken", RunError, "answers: runtime_env is broken"),
        (
            "Request failed with status code 413: Too Large",
            UsageError,
            "larger than the 100 MiB.* .gitignore",
        ),
    ],
)
def test_rejected_job_is_an_error(
    cluster: Cluster, folder: Path, error: str, kind: type[Exception], message: str
) -> None:
    cluster.declines = error
    with pytest.raises(kind, match=message):
        Jobs(ADDRESS).submit(job(), folder)


def test_unset_environment_variable_is_refused(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UsageError, match="environment: WANDB_API_KEY is not set"):
        Jobs(ADDRESS).submit(job(environment=["WANDB_API_KEY"]), folder)
    assert not cluster.submitted


def test_the_log_is_shown_until_the_job_ends(cluster: Cluster) -> None:
    shown: list[str] = []
    status = Jobs(ADDRESS).follow("known", shown.append)
    assert "".join(shown) == cluster.log
    assert (status.status, status.exit_code) == ("SUCCEEDED", 0)


@pytest.mark.parametrize("error", ["closed", "handshake", "disconnected"])
def test_broken_connection_prints_the_command_to_follow_again(cluster: Cluster, error: str) -> None:
    import aiohttp

    request: Any = SimpleNamespace(real_url=ADDRESS)
    errors = {
        "closed": RuntimeError("WebSocket connection closed unexpectedly"),
        "handshake": aiohttp.WSServerHandshakeError(request, (), status=502),
        "disconnected": aiohttp.ServerDisconnectedError(),
    }
    cluster.breaks, cluster.status = errors[error], "RUNNING"
    with pytest.raises(
        RunError, match=f"known continues.*hookyard logs known --follow --address {ADDRESS}"
    ):
        Jobs(ADDRESS).follow("known", lambda text: None)


def test_lost_end_of_the_log_is_told(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The job may end while the connection is away."""
    cluster.breaks = RuntimeError("WebSocket connection closed unexpectedly")
    shown: list[str] = []
    assert Jobs(ADDRESS).follow("known", shown.append).status == "SUCCEEDED"
    assert "".join(shown) == "one\n"
    assert capsys.readouterr().err == (
        f"lost the connection to {ADDRESS} before the end of the log."
        f" To see all of it: hookyard logs known --address {ADDRESS}\n"
    )


def test_closed_pipe_of_the_log_is_not_a_broken_connection(cluster: Cluster) -> None:
    def show(text: str) -> None:
        raise BrokenPipeError("head has read its lines")

    with pytest.raises(BrokenPipeError, match="head has read its lines"):
        Jobs(ADDRESS).follow("known", show)


@pytest.mark.parametrize("verb", ["status", "log", "stop"])
def test_unknown_job_is_an_error(cluster: Cluster, verb: str) -> None:
    with pytest.raises(UsageError, match=f"the cluster at {ADDRESS} has no job 'other'"):
        getattr(Jobs(ADDRESS), verb)("other")
    getattr(Jobs(ADDRESS), verb)("known")


def test_wrong_token_and_missing_cluster_are_errors(cluster: Cluster) -> None:
    from ray.exceptions import AuthenticationError

    cluster.refuses = AuthenticationError("Authentication failed: Forbidden\n\nlong advice")
    with pytest.raises(
        UsageError, match=r"needs its token: Authentication failed: Forbidden; set RAY_AUTH_TOKEN"
    ):
        Jobs(ADDRESS)
    cluster.refuses = ConnectionError("Failed to connect to Ray at address: x.")
    with pytest.raises(UsageError, match=r"no cluster answers at http://127\.0\.0\.1:8265: Failed"):
        Jobs(ADDRESS)


def test_missing_package_and_wrong_address_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with pytest.raises(UsageError, match="no cluster given"):
        Jobs(None)
    with pytest.raises(UsageError, match=r"got '10\.0\.0\.1:6379'"):
        Jobs("10.0.0.1:6379")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'hookyard\[cluster\]'"):
        Jobs(ADDRESS)
