"""What Ray is given of the environment; nothing is started."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.engines.ray_environment import (
    Ray,
    Resources,
    describe_connection,
    find_local_resources,
    needs_start,
    read_environment,
    set_environment,
)
from orchestrator.errors import RunError, UsageError
from orchestrator.experiment.sections.workers import Workers


def test_named_environment_variables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "one")
    monkeypatch.setenv("OTHER", "two")
    assert read_environment(["HF_TOKEN"]) == {"HF_TOKEN": "one"}
    assert read_environment([]) == {}
    with pytest.raises(
        UsageError, match="environment: WANDB_API_KEY is not set; export it, or remove it"
    ) as told:
        read_environment(["HF_TOKEN", "WANDB_API_KEY"])
    assert "one" not in str(told.value).split()


@pytest.mark.parametrize(
    ("workers", "asked"),
    [
        (Workers(count=3, cpus=0.5), Resources({"CPU": 1.5})),
        (Workers(count=2, gpu=True), Resources({"CPU": 2, "GPU": 2})),
        (Workers(count=[2, 8], cpus=4, gpu=True), Resources({"CPU": 8, "GPU": 2})),
        (Workers(gpu=0.25), Resources({"CPU": 1, "GPU": 0.25})),
        (
            Workers(count=2, memory="1.5 GiB", resources={"spot": 2}),
            Resources({"CPU": 2, "memory": 3 * 2**30, "spot": 4}),
        ),
        (
            Workers(count=2, gpu=True, accelerator="H100"),
            Resources({"CPU": 2, "GPU": 2, "accelerator_type:H100": 0.002}),
        ),
    ],
)
def test_run_requires_the_resources_of_its_fewest_ranks(workers: Workers, asked: Resources) -> None:
    assert Resources.required_by(workers) == asked


def test_variables_of_the_job_are_not_set_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_TOKEN": "one", "OTHER": "two"}
    assert Ray("10.0.0.1:6379", environment=given)._environment == {
        "runtime_env": {"env_vars": given}
    }
    job = {
        "runtime_env": {"env_vars": {"HF_TOKEN": "one"}, "working_dir": "gcs://x.zip"},
        "metadata": {},
    }
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    assert Ray("10.0.0.1:6379", environment=given)._environment == {
        "runtime_env": {"env_vars": {"OTHER": "two"}}
    }
    assert Ray("10.0.0.1:6379", environment={"HF_TOKEN": "one"})._environment == {}


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
    ("address", "before", "after"),
    [(None, None, "0"), (None, "1", "1"), ("10.0.0.1:6379", None, None)],
)
def test_workers_on_this_machine_get_no_environment_of_uv(
    monkeypatch: pytest.MonkeyPatch, address: str | None, before: str | None, after: str | None
) -> None:
    name = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    monkeypatch.setattr(os, "environ", {} if before is None else {name: before})
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    set_environment(address)
    assert os.environ.get(name) == after


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


def test_unreadable_file_of_a_driver_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("0", "Model: \t NVIDIA H100 80GB HBM3"), ("1", None)):
        (tmp_path / name).mkdir()
        if text:
            (tmp_path / name / "information").write_text(text)
        else:
            (tmp_path / name / "information").mkdir()  # reading it is an OSError
    monkeypatch.setattr("orchestrator.engines.ray_environment.Path", lambda path: tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    resources = find_local_resources()
    assert {name: resources.amounts[name] for name in ("GPU", "accelerator_type:H100")} == {
        "GPU": 2,
        "accelerator_type:H100": 1,
    }
