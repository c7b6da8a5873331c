"""A job as KubeRay takes it: a RayJob that brings its own cluster. Pure: the manifest as plain data."""

from __future__ import annotations

import math
import re
from typing import Any

from orchestrator.cluster.job import Job

SECRET = "hookyard-environment"
"""The Kubernetes secret that holds the variables of an experiment's environment."""

KEEP_S = 600
"""How long the finished job's cluster stays, for a look at its logs."""


def manifest(job: Job, image: str, ray_version: str) -> dict[str, Any]:
    """A RayJob with a pod for each rank, beside a head that trains nothing. `image` holds the project and the
    experiment.

    Its fields are those of ray.io/v1; `authOptions` needs KubeRay 1.5.1 or later.
    """
    workers = job.experiment.workers
    cpus, memory = max(1, math.ceil(workers.cpus)), str(workers.memory or "8Gi")
    environment = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}}
        for name in job.experiment.environment
    ]
    # A name of Kubernetes: small letters, digits and dashes.
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
    """A pod of one container; data loaders and Ray's object store need more shared memory than a container has."""
    return {
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "env": [dict(one) for one in environment],
                    "resources": {"limits": limits, "requests": dict(limits)},
                    "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}],
        }
    }
