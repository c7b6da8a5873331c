"""The RayJob manifest of a job, for KubeRay."""

from __future__ import annotations

import math
import re
from typing import Any

from orchestrator.cluster.job import Job

SECRET = "hookyard-environment"
"""Name of the Kubernetes secret with the variables of the experiment's `environment`."""

KEEP_S = 600
"""Seconds that the cluster of a finished job is kept, for its logs."""


def make_manifest(job: Job, image: str, ray_version: str) -> dict[str, Any]:
    """Return a RayJob (ray.io/v1) with a pod per rank and a head without ranks.

    The image holds the project and the experiment. `authOptions` needs KubeRay 1.5.1.
    """
    workers = job.experiment.workers
    cpus, memory = max(1, math.ceil(workers.cpus)), str(workers.memory or "8Gi")
    environment = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}}
        for name in job.experiment.environment
    ]
    # Kubernetes allows lower-case letters, digits and dashes.
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40] or "hookyard"
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": job.command,
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEEP_S,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": _pod("ray-head", image, environment, {"cpu": "2", "memory": "8Gi"}),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "ranks",
                        "replicas": workers.max_count,
                        "minReplicas": workers.min_count,
                        "maxReplicas": workers.max_count,
                        "rayStartParams": {},
                        "template": _pod(
                            "ray-worker",
                            image,
                            environment,
                            {"cpu": str(cpus), "memory": memory, **({"nvidia.com/gpu": "1"} if workers.gpu else {})},
                        ),
                    }
                ],
            },
        },
    }


def _pod(name: str, image: str, environment: list[dict[str, Any]], limits: dict[str, str]) -> dict[str, Any]:
    """Return a pod of one container, with shared memory for data loaders and Ray's object store."""
    return {
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "env": [dict(variable) for variable in environment],
                    "resources": {"limits": limits, "requests": dict(limits)},
                    "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}],
        }
    }
