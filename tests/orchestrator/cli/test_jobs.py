"""`hookyard submit`, `status`, `logs` and `stop` as a user calls them; a stand-in takes the place
of the cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import app
from orchestrator.cluster import jobs, slurm
from orchestrator.cluster.job_status import JobStatus

YAML = "name: points\ntask: tests.tasks:Points\nepochs: 1\n"


class StandIn:
    """In place of Jobs."""

    address = "http://head:8265"
    flags = " --address http://head:8265"
    ends = "SUCCEEDED"
    exit_code: int | None = 0
    interrupted = False
    stopped = False

    def __init__(self, address: str | None) -> None:
        assert address == self.address

    def submit(self, job: Any, files: Any) -> str:
        return "points-1"

    def follow(self, job: str, show: Callable[[str], None]) -> JobStatus:
        if type(self).interrupted:
            type(self).interrupted = False
            raise KeyboardInterrupt
        show("a line of the log\n")
        return self.status(job)

    def status(self, job: str) -> JobStatus:
        return JobStatus(
            job,
            "STOPPED" if type(self).stopped else self.ends,
            "",
            self.exit_code,
            "python -m orchestrator",
        )

    def log(self, job: str) -> str:
        return "a line of the log\n"

    def stop(self, job: str) -> None:
        type(self).stopped = True


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    (tmp_path / "points.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    made = type("Made", (StandIn,), {})
    monkeypatch.setattr(jobs, "Jobs", made)
    return made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def send(*arguments: str) -> Result:
    return call(
        "submit",
        "points.yaml",
        "--storage",
        "s3://bucket/runs",
        "--address",
        "http://head:8265",
        *arguments,
    )


def test_submit_follows_the_log_and_exits_as_the_job() -> None:
    sent = send()
    assert sent.exit_code == 0, sent.output
    assert sent.stdout == "a line of the log\n"
    assert sent.stderr.startswith(
        f"sending {Path.cwd()}, without what .gitignore and .rayignore exclude"
    )
    assert "points-1: SUCCEEDED" in sent.stderr


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [("FAILED", 3, 3), ("FAILED", None, 1), ("STOPPED", None, 130), ("SUCCEEDED", 0, 0)],
)
def test_exit_code_is_that_of_the_job(
    stand_in: type[StandIn], status: str, code: int | None, expected: int
) -> None:
    stand_in.ends, stand_in.exit_code = status, code
    assert send().exit_code == expected
    assert (
        call("logs", "points-1", "--follow", "--address", "http://head:8265").exit_code == expected
    )


def test_detach_prints_only_the_name_of_the_job() -> None:
    sent = send("--detach")
    assert (sent.exit_code, sent.stdout) == (0, "points-1\n")
    assert "hookyard logs points-1 --follow --address http://head:8265" in sent.stderr


def test_ctrl_c_leaves_the_job_running(stand_in: type[StandIn]) -> None:
    stand_in.interrupted = True
    interrupted = send()
    assert interrupted.exit_code == 130
    assert "points-1 continues" in interrupted.stderr
    assert "hookyard stop points-1 --address http://head:8265" in interrupted.stderr
    assert not stand_in.stopped


def test_submit_checks_the_config_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "Jobs", None)
    assert send("batch_sise=8").exit_code == 2


def test_status_and_stop(stand_in: type[StandIn]) -> None:
    address = ("--address", "http://head:8265")
    status = call("status", "points-1", *address).stdout
    assert status == "points-1: SUCCEEDED, exit code 0\ncommand: python -m orchestrator\n"
    assert call("logs", "points-1", *address).stdout == "a line of the log\n"
    ended = call("stop", "points-1", *address)
    assert ended.exit_code == 0
    assert ended.stderr == "points-1 has already ended: SUCCEEDED\n"
    assert not stand_in.stopped

    stand_in.ends = "RUNNING"
    assert call("stop", "points-1", *address).exit_code == 0
    assert stand_in.stopped


@pytest.fixture
def of_slurm(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class OfSlurm(StandIn):
        flags = ""
        script = ""

        def __init__(self) -> None:
            pass

        def submit(self, script: str) -> str:  # type: ignore[override]
            type(self).script = script
            return "12"

    monkeypatch.setattr(slurm, "SlurmJobs", OfSlurm)
    monkeypatch.setattr(jobs, "Jobs", None)
    return OfSlurm


def test_slurm_gets_a_script_and_its_log_is_followed(of_slurm: Any) -> None:
    of_slurm.exit_code, of_slurm.ends = 3, "FAILED"
    sent = call("submit", "points.yaml", "epochs=3", "--slurm", "--nodes=2", "--sbatch=--mem=1G")
    assert (sent.exit_code, sent.stdout) == (3, "a line of the log\n")
    assert "submitted 12\n12: FAILED" in sent.stderr
    assert "#SBATCH --nodes=2\n" in of_slurm.script
    assert "#SBATCH --mem=1G\n" in of_slurm.script
    assert "run points.yaml epochs=3 --storage" in of_slurm.script


def test_print_shows_the_script_and_submits_nothing(of_slurm: Any) -> None:
    shown = call("submit", "points.yaml", "--slurm", "--print", "--time=08:00:00")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("#!/bin/bash\n#SBATCH ")
    assert "#SBATCH --time=08:00:00\n" in shown.stdout
    assert not of_slurm.script


def test_number_is_a_job_of_slurm(of_slurm: Any) -> None:
    assert call("status", "12").stdout.startswith("12: SUCCEEDED")
    assert call("logs", "12", "--follow").exit_code == 0
    of_slurm.ends = "RUNNING"
    stopped = call("stop", "12")
    assert stopped.stderr == "stopping 12. To see its status: hookyard status 12\n"
    assert of_slurm.stopped


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nodes=2", "--sbatch=--mem=1G"], "--nodes, --sbatch need --slurm"),
        (["--print"], "--print needs --slurm"),
        (["--slurm", "--address=http://head:8265"], "remove it or --slurm"),
    ],
)
def test_flags_without_effect_are_refused(of_slurm: Any, flags: list[str], message: str) -> None:
    refused = call("submit", "points.yaml", *flags)
    assert refused.exit_code == 2
    assert message in refused.stderr
