"""The manifest against the fields of ray.io/v1, as KubeRay's own types name them; nothing is sent to a cluster."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.cluster.job import Job
from orchestrator.cluster.kuberay import SECRET, make_manifest
from orchestrator.config.text.reader import dump_yaml
from tests.tasks import described

TEXT, COUNT, TEXTS = (
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "object", "additionalProperties": {"type": "string"}},
)


def closed(required: str, **properties: Any) -> dict[str, Any]:
    """An object of these fields alone."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


RESOURCES = closed("limits requests", limits=TEXTS, requests=TEXTS)
VARIABLE = closed(
    "name valueFrom", name=TEXT, valueFrom=closed("secretKeyRef", secretKeyRef=closed("name key", name=TEXT, key=TEXT))
)
CONTAINER = closed(
    "name image resources",
    name=TEXT,
    image=TEXT,
    env={"type": "array", "items": VARIABLE},
    resources=RESOURCES,
    volumeMounts=listed(closed("name mountPath", name=TEXT, mountPath=TEXT)),
)
VOLUME = closed("name emptyDir", name=TEXT, emptyDir=closed("", medium={"enum": ["Memory"]}, sizeLimit=TEXT))
VOLUME["properties"]["emptyDir"]["required"] = []
POD = closed("spec", spec=closed("containers", containers=listed(CONTAINER), volumes=listed(VOLUME)))
HEAD = closed("template", rayStartParams=TEXTS, template=POD)
GROUP = closed(
    "groupName template minReplicas maxReplicas",
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
CLUSTER = closed(
    "headGroupSpec",
    rayVersion=TEXT,
    authOptions=closed("mode", mode={"enum": ["disabled", "token"]}),
    headGroupSpec=HEAD,
    workerGroupSpecs=listed(GROUP),
)
RAY_JOB = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=closed("name", name={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}),
    spec=closed(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode"]},
        backoffLimit=COUNT,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=CLUSTER,
    ),
)
"""https://github.com/ray-project/kuberay/tree/master/ray-operator/apis/ray/v1, of which these are a part."""


def made(**changes: Any) -> dict[str, Any]:
    job = Job(described(**changes), "points.yaml", (), "s3://bucket/runs", changes.get("name", "points"))
    return make_manifest(job, "registry/image:1", "2.60.0")


def group(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = made(**changes)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    return found


@pytest.mark.parametrize(
    "changes", [{}, {"environment": ["WANDB_API_KEY"]}, {"workers": {"count": 4, "gpu": True}}, {"name": "A_b.C"}]
)
def test_the_manifest_has_the_fields_of_a_ray_job(changes: dict[str, Any]) -> None:
    jsonschema.validate(made(**changes), RAY_JOB)


def test_each_rank_has_a_pod_with_what_it_asks_for() -> None:
    four = group(workers={"count": 4, "gpu": True, "cpus": 2.5})
    assert (four["replicas"], four["minReplicas"], four["maxReplicas"]) == (4, 4, 4)
    assert four["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "3",
        "memory": "8Gi",
        "nvidia.com/gpu": "1",
    }
    some = group(workers={"count": [2, 8]})
    assert (some["replicas"], some["minReplicas"], some["maxReplicas"]) == (8, 2, 8)
    assert "nvidia.com/gpu" not in group()["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_the_head_trains_nothing_and_the_token_is_on() -> None:
    cluster = made()["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    assert cluster["authOptions"] == {"mode": "token"}


def test_values_of_the_environment_come_from_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    wanted = [{"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "WANDB_API_KEY"}}}]
    assert group(environment=["WANDB_API_KEY"])["template"]["spec"]["containers"][0]["env"] == wanted
    assert "hunter2" not in dump_yaml(made(environment=["WANDB_API_KEY"]))


def test_it_survives_being_written_and_uses_no_anchors() -> None:
    text = dump_yaml(made(environment=["A"]))
    assert not re.search(r"[&*]id\d", text)
    assert yaml.safe_load(text) == made(environment=["A"])
