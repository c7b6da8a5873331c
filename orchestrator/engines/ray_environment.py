"""Ray's environment: every setting in one place, made before ray is imported. Driver."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.experiment import Workers
from orchestrator.engines.orphans import in_words, orphans
from orchestrator.errors import RunError, UsageError
from orchestrator.private_api.ray_settings import SETTINGS, given_by_job


def with_unit(number: float, unit: str) -> str:
    """`1 CPU`, `2 CPUs`."""
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


@dataclass(frozen=True)
class Resources:
    """What a cluster has, or a run asks for."""

    cpus: float
    gpus: float = 0

    @classmethod
    def asked_by(cls, workers: Workers) -> Resources:
        """What a run needs at the least."""
        return cls(workers.least * workers.cpus, workers.least if workers.gpu else 0)

    def __str__(self) -> str:
        return with_unit(self.cpus, "CPU") + (f" and {with_unit(self.gpus, 'GPU')}" if self.gpus else "")


def set_environment(address: str | None) -> None:
    """Sets what Ray reads when it is imported; what the user has set stays."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules:
        # Ray has read these when it was imported; another value now would set its own processes against each other.
        return
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token_file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and not token_file.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def chosen_address(address: str | None, *, local: bool = False) -> str | None:
    """The cluster to join: what was asked for, else RAY_ADDRESS; None starts Ray on this machine.

    What is `local` joins none, and UsageError is raised where one was asked for.
    """
    if local and address:
        raise UsageError(f"the cluster at {address} is not joined by what runs in this process: leave out --address, or --local")
    return None if local else address or os.environ.get("RAY_ADDRESS") or None


def starts_ray(address: str | None) -> bool:
    """Whether Ray is to be started on this machine: no cluster to join is named, and this process is in none."""
    ray = sys.modules.get("ray")
    return address is None and not (ray and ray.is_initialized())


def connection_line(address: str | None) -> str:
    """How Ray is come by, as a line for the user."""
    if address:
        return f"joining Ray at {address}"
    if not starts_ray(address):
        return "using the Ray that this process has joined"
    left = orphans()
    return f"starting Ray on this machine{f'; {in_words(left)}; nothing uses them' if left else ''}"


def environment_values(names: Iterable[str]) -> dict[str, str]:
    """The environment variables that workers get, with their values here; raises UsageError for those that are not set."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(f"the experiment's environment names {', '.join(missing)}, not set here: export them, or take them out")
    return {name: os.environ[name] for name in names}


def local_resources() -> Resources:
    """What this machine has, without asking Ray."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return Resources(os.cpu_count() or 1, len([device for device in visible.split(",") if device not in ("", "-1")]))
    return Resources(os.cpu_count() or 1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))


def refuse_unless_fits(asked: Resources, present: Resources, what: str) -> None:
    """Raises UsageError with the arithmetic where a machine can never hold what is asked."""
    if asked.cpus > present.cpus or asked.gpus > present.gpus:
        raise UsageError(
            f"{what} asks for {asked}, this machine has {present}. Ask for fewer workers, or less of each "
            "(workers.count, workers.cpus), or join a cluster with --address."
        )


class Ray:
    """Ray, started on this machine or joined at an address, and left again. Driver."""

    def __init__(self, address: str | None = None, *, environment: Mapping[str, str] | None = None, **local_options: Any) -> None:
        self.address = chosen_address(address)
        self._options = local_options
        # Only where there are some: Ray starts new processes for workers that need an environment of their own.
        new = {name: value for name, value in (environment or {}).items() if name not in given_by_job()}
        self._environment = {"runtime_env": {"env_vars": new}} if new else {}

    def __enter__(self) -> Any:
        set_environment(self.address)
        import ray

        self._owned = not ray.is_initialized()
        if not self._owned:
            return ray
        from orchestrator.private_api.ray_core import DriversImportPath, few_processes

        common = {"log_to_driver": False, "logging_level": "ERROR", "job_config": DriversImportPath()}
        try:
            if self.address:
                ray.init(address=self.address, **common, **self._environment)
            else:
                with few_processes():
                    ray.init(address="local", include_dashboard=False, object_store_memory=200 * 2**20, **common, **self._options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"join the cluster at {self.address}" if self.address else "start Ray on this machine"
            raise RunError(f"could not {where}: {error}") from error
        return ray

    def __exit__(self, *error: object) -> None:
        if not self._owned:
            return
        import ray

        ray.shutdown()
