"""The Ray of a driver: a cluster that it joins, or one that it starts on this machine."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hooks.errors import describe_error
from orchestrator.engines.ray_environment import set_environment
from orchestrator.errors import RunError, UsageError
from orchestrator.private_api.ray_settings import list_job_variables
from orchestrator.process.child_signals import separate_children

_CONNECTION_TIMEOUT_S = 5


def choose_address(address: str | None, *, local: bool = False) -> str | None:
    """Return the cluster to join: `address`, otherwise RAY_ADDRESS; None starts Ray on this
    machine.

    Raises UsageError for an address with `local`.
    """
    if local and address:
        raise UsageError(
            f"a local run or sweep joins no cluster, but the address {address} was given; leave out"
            " the address, or run on Ray"
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


class Ray:
    """Ray, started on this machine or joined at an address, as a context manager. Used in the
    driver.

    `environment` has the variables that workers get, and `local_options` are those of `ray.init` for
    a Ray on this machine. A Ray that this process has joined before is used, and stays.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **local_options: Any,
    ) -> None:
        self.address = choose_address(address)
        self._environment = environment or {}
        self._options = local_options
        self._has_started = False

    def __enter__(self) -> Any:
        set_environment(self.address)
        import ray

        self._has_started = not ray.is_initialized()
        if not self._has_started:
            return ray
        if self.address:
            self._join(self.address)
        else:
            self._start()
        return ray

    def _join(self, address: str) -> None:
        """Join the cluster at an address."""
        from ray.exceptions import AuthenticationError

        where = f"could not join the cluster at {address}"
        try:
            _check_listening(address)
            _initialize(on_this_machine=False, address=address, **self._list_variables())
        except (OSError, ValueError, AuthenticationError) as error:
            raise UsageError(
                f"{where}: {get_first_sentence(error)}; check the address, which may come from"
                " RAY_ADDRESS, and the cluster's token in RAY_AUTH_TOKEN"
            ) from error
        except RuntimeError as error:
            raise RunError(f"{where}: {error}") from error

    def _list_variables(self) -> dict[str, Any]:
        """Return the option of `ray.init` with the variables that the workers of a cluster lack; a
        Ray on this machine inherits them."""
        known = list_job_variables()
        new = {name: value for name, value in self._environment.items() if name not in known}
        # Ray starts separate worker processes for each environment.
        return {"runtime_env": {"env_vars": new}} if new else {}

    def _start(self) -> None:
        """Start Ray on this machine."""
        from ray.exceptions import AuthenticationError

        from orchestrator.private_api.ray_core import with_few_processes

        options = {"include_dashboard": False, "object_store_memory": 200 * 2**20, **self._options}
        try:
            with with_few_processes():
                _initialize(on_this_machine=True, address="local", **options)
        except (OSError, RuntimeError, ValueError, AuthenticationError) as error:
            raise RunError(f"could not start Ray on this machine: {error}") from error

    def __exit__(self, *error: object) -> None:
        if not self._has_started:
            return
        import ray

        ray.shutdown()


def _initialize(*, on_this_machine: bool, **options: Any) -> None:
    import ray

    from orchestrator.private_api.ray_core import DriversImportPath

    job = DriversImportPath(on_this_machine=on_this_machine)
    with _same_sigterm_handler(), separate_children():
        ray.init(log_to_driver=False, logging_level="ERROR", job_config=job, **options)


def _check_listening(address: str) -> None:
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
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
