"""The cluster file at the root, checked by Ray's own validators; nothing is started."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())


@pytest.fixture
def cluster() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    return loaded


def start_commands(cluster: dict[str, Any]) -> list[str]:
    return [*cluster["head_start_ray_commands"], *cluster["worker_start_ray_commands"]]


def test_ray_accepts_the_cluster_file(cluster: dict[str, Any]) -> None:
    jsonschema.validate(cluster, SCHEMA)
    prepared = prepare_config(copy.deepcopy(cluster))
    validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "gpu"}


def test_head_does_not_train_and_workers_are_autoscaled(cluster: dict[str, Any]) -> None:
    kinds = cluster["available_node_types"]
    head = kinds.pop(cluster["head_node_type"])
    assert head["resources"] == {"CPU": 0, "GPU": 0}
    assert [kind["min_workers"] for kind in kinds.values()] == [0]
    assert all(kind["resources"]["GPU"] >= 1 for kind in kinds.values())


def test_every_node_has_the_token_and_requires_it(cluster: dict[str, Any]) -> None:
    starts = [command for command in start_commands(cluster) if "ray start" in command]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert cluster["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}


def test_the_dashboard_listens_on_loopback_alone(cluster: dict[str, Any]) -> None:
    text = (ROOT / "cluster.yaml").read_text()
    assert [part for part in text.split() if part.startswith("--dashboard-host")] == [
        "--dashboard-host=127.0.0.1"
    ]
    assert "0.0.0.0" not in text
    assert "security_group" not in cluster["provider"]


def test_the_project_is_installed_with_its_pinned_versions_after_torch(
    cluster: dict[str, Any],
) -> None:
    torch_pin = next(
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("torch==")
    )
    installs = [command for command in cluster["setup_commands"] if "pip install" in command]
    assert installs == [
        f"~/venv/bin/pip install --quiet {torch_pin}",
        "~/venv/bin/pip install --quiet --constraint ~/hookyard/constraints.txt --editable ~/hookyard[cluster,demo]",
    ]
