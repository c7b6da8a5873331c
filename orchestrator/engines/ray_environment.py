"""Environment variables for Ray, its start, and the resources of a cluster or a run. Runs in the
driver."""

import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hooks.errors import describe_error
from orchestrator.errors import ConfigError, RunError, UsageError
from orchestrator.experiment.sections.workers import Workers
from orchestrator.private_api.ray_settings import (
    SETTINGS,
    SETTINGS_ON_THIS_MACHINE,
    variables_of_job,
)
from orchestrator.process.child_signals import separate_children

_CONNECTION_TIMEOUT_S = 5


def with_unit(number: float, unit: str) -> str:
    """Return `1 CPU`, `2 CPUs`."""
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


@dataclass(frozen=True)
class Resources:
    """Resources of a cluster, or those that a run needs."""

    amounts: Mapping[str, float]
    """Amounts by Ray's names: `CPU`, `GPU`, `memory` in bytes, kinds of GPU, and a cluster's custom
    resources."""

    @classmethod
    def required_by(cls, workers: Workers) -> "Resources":
        """Return the minimum that a run needs."""
        processes = workers.min_count + workers.spares
        return cls({name: amount * processes for name, amount in workers.bundle().items()})

    def find_missing(self, present: "Resources") -> dict[str, tuple[float, float]]:
        """Return the resources that `present` lacks: the amount needed, and the amount present."""
        available = {name: present.amounts.get(name, 0) for name in self.amounts}
        return {
            name: (amount, available[name])
            for name, amount in self.amounts.items()
            if amount > available[name]
        }

    def __str__(self) -> str:
        amounts = {"CPU": 0, **self.amounts}
        texts = [
            format_amount(name, amount)
            for name, amount in amounts.items()
            if amount or name == "CPU"
        ]
        return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def format_amount(resource: str, amount: float) -> str:
    """Format an amount of one of Ray's resources: `2 CPUs`, `8 GiB of memory`."""
    if resource == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    kind = resource.removeprefix("accelerator_type:")
    return with_unit(amount, resource) if kind == resource else f"GPUs of the kind {kind}"


def set_environment(address: str | None) -> None:
    """Set the variables that Ray reads when it is imported, unless the user has set them."""
    settings = SETTINGS | SETTINGS_ON_THIS_MACHINE if address is None else SETTINGS
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules:
        # Ray has already read the other variables, and all its processes must have the same.
        return
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token_file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and not token_file.exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def choose_address(address: str | None, *, local: bool = False) -> str | None:
    """Return the cluster to join: `address`, otherwise RAY_ADDRESS; None starts Ray on this
    machine.

    Raises UsageError for an address with `local`.
    """
    if local and address:
        raise UsageError(
            f"--local does not join the cluster at {address}; leave out --address or --local"
        )
    return None if local else address or os.environ.get("RAY_ADDRESS") or None


def needs_start(address: str | None) -> bool:
    """Return whether Ray must be started on this machine: this process is in no cluster, and has
    none to join."""
    ray = sys.modules.get("ray")
    return address is None and not (ray and ray.is_initialized())


def describe_connection(address: str | None) -> str:
    """Return the log line on how Ray starts."""
    if address:
        return f"joining Ray at {address}"
    if not needs_start(address):
        return "using the Ray that this process has joined"
    return "starting Ray on this machine"


def read_environment(names: Iterable[str]) -> dict[str, str]:
    """Return the values of the workers' environment variables in this process. Raises ConfigError if
    one is not set."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise ConfigError.at(
            "environment", f"{', '.join(missing)} {are} not set; export {them}, or remove {them}"
        )
    return {name: os.environ[name] for name in names}


def find_local_resources() -> Resources:
    """Return the resources of this machine, without Ray."""
    import psutil

    installed = list(Path("/proc/driver/nvidia/gpus").glob("*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = (
        installed
        if visible is None
        else [name for name in visible.split(",") if name not in ("", "-1")]
    )
    kinds = {}
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information") if devices else ():
        with suppress(OSError):
            if kind := _GPU_KIND.search(file.read_text()):
                kinds[f"accelerator_type:{kind[1]}"] = 1.0
    amounts = {
        "CPU": os.cpu_count() or 1,
        "GPU": len(devices),
        "memory": psutil.virtual_memory().total,
    }
    return Resources({**amounts, **kinds})


_GPU_KIND = re.compile(r"Model:\s+\w+\s+([A-Z0-9]+)")
"""Kind of a GPU in the text of NVIDIA's driver, as Ray finds it: `H100` in
`NVIDIA H100 80GB HBM3`."""


class Ray:
    """Ray, started on this machine or joined at an address, as a context manager. Used in the
    driver."""

    def __init__(
        self,
        address: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **local_options: Any,
    ) -> None:
        self.address = choose_address(address)
        self._options = local_options
        # Only if a cluster lacks some, because Ray starts separate worker processes for each
        # environment.
        new = {
            name: value
            for name, value in (environment or {}).items()
            if name not in variables_of_job()
        }
        self._environment = {"runtime_env": {"env_vars": new}} if new and self.address else {}

    def __enter__(self) -> Any:
        set_environment(self.address)
        import ray

        self._has_started = not ray.is_initialized()
        if not self._has_started:
            return ray
        from orchestrator.private_api.ray_core import DriversImportPath, with_few_processes

        options: dict[str, Any] = {"address": self.address, **self._environment}
        if not self.address:
            options = {
                "address": "local",
                "include_dashboard": False,
                "object_store_memory": 200 * 2**20,
            }
            options |= self._options
        job = DriversImportPath(on_this_machine=not self.address)
        try:
            with _same_sigterm_handler(), separate_children():
                if self.address:
                    _connect(self.address)
                with nullcontext() if self.address else with_few_processes():
                    ray.init(log_to_driver=False, logging_level="ERROR", job_config=job, **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            where = (
                f"join the cluster at {self.address}"
                if self.address
                else "start Ray on this machine"
            )
            if self.address and isinstance(
                error, OSError | ValueError | ray.exceptions.AuthenticationError
            ):
                advice = "check --address or RAY_ADDRESS, and the cluster's token in RAY_AUTH_TOKEN"
                raise UsageError(
                    f"could not {where}: {get_first_sentence(error)}; {advice}"
                ) from error
            raise RunError(f"could not {where}: {error}") from error
        return ray

    def __exit__(self, *error: object) -> None:
        if not self._has_started:
            return
        import ray

        ray.shutdown()


def _connect(address: str) -> None:
    """Raise OSError if nobody listens at a cluster's address, because `ray.init` would log and wait
    for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), port), timeout=_CONNECTION_TIMEOUT_S).close()


def get_first_sentence(error: Exception) -> str:
    """Return the first sentence of an error's message."""
    return (
        describe_error(error)
        .removeprefix(f"{type(error).__name__}: ")
        .splitlines()[0]
        .split(". ")[0]
        .rstrip(".:")
    )


@contextmanager
def _same_sigterm_handler() -> Iterator[None]:
    """Restore this process's handler of SIGTERM, if it has one; `ray.init` replaces it with
    `sys.exit`."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
