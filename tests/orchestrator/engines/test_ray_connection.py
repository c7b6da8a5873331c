"""How the driver connects to Ray; nothing is started."""

import json
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines.ray_connection import Ray, describe_connection, needs_start
from orchestrator.errors import RunError, UsageError


def test_variables_of_the_job_are_not_set_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_TOKEN": "one", "OTHER": "two"}
    assert Ray("10.0.0.1:6379", environment=given)._list_variables() == {
        "runtime_env": {"env_vars": given}
    }
    job = {
        "runtime_env": {"env_vars": {"HF_TOKEN": "one"}, "working_dir": "gcs://x.zip"},
        "metadata": {},
    }
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert Ray("10.0.0.1:6379", environment=given)._list_variables() == {
        "runtime_env": {"env_vars": {"OTHER": "two"}}
    }
    assert Ray("10.0.0.1:6379", environment={"HF_TOKEN": "one"})._list_variables() == {}


@pytest.mark.parametrize(
    ("address", "joined", "starts", "told"),
    [
        (None, None, True, "starting Ray on this machine"),
        (None, False, True, "starting Ray on this machine"),
        (None, True, False, "using the Ray that this process has joined"),
        ("10.0.0.2:6379", False, False, "joining Ray at 10.0.0.2:6379"),
    ],
)
def test_ray_starts_only_without_one_to_join(
    address: str | None,
    joined: bool | None,
    starts: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    if joined is not None:
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: joined))
    assert needs_start(address) is starts
    assert describe_connection(address) == told


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("nonsense", "Invalid address format")],
)
def test_wrong_address_is_an_error_of_one_line(address: str, reason: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^could not join the cluster at {address}: [^\n]*{reason}[^\n]*$"
    ):
        Ray(address).__enter__()


def test_both_versions_of_a_mismatch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n  Ray: 2.1\nThis process has:\n  Ray: 2.9"
        )

    monkeypatch.setattr("ray.init", refuse)
    with pytest.raises(
        RunError, match=r"^could not join the cluster at auto: Version .*(\n.*)*2\.1\n.*\n.*2\.9$"
    ):
        Ray("auto").__enter__()


def test_handler_of_sigterm_is_restored_if_ray_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`ray.init` installs a handler of its own early, and may fail afterwards."""

    def fail(**options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        raise RuntimeError("no memory")

    def save(number: int, frame: object) -> None: ...

    monkeypatch.setattr("ray.init", fail)
    before = signal.signal(signal.SIGTERM, save)
    try:
        with pytest.raises(RunError, match="no memory"):
            Ray().__enter__()
        assert signal.getsignal(signal.SIGTERM) is save
    finally:
        signal.signal(signal.SIGTERM, before)
