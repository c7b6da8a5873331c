"""Workers of Ray, forked from a process that has imported torch, as imports are most of what a
worker does.

Tests of how workers start use ordinary ones.
"""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

from tests.ranks import FORKSERVER

ADDRESS = "HOOKYARD_TEST_WORKERS"
"""Environment variable with the path of the socket at which `fork_worker.py` asks for a worker."""


@contextmanager
def forked_workers() -> Iterator[None]:
    """Let clusters fork their workers, if the process that starts them calls `fork_workers`."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ADDRESS] = f"{folder}/socket"
        server = FORKSERVER.Process(target=_serve_workers, args=[os.environ[ADDRESS]])
        server.start()
        try:
            yield
        finally:
            del os.environ[ADDRESS]
            server.terminate()
            server.join()


def fork_workers() -> None:
    """Fork the workers of a cluster that this process starts."""
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name("fork_worker.py"))


def _serve_workers(address: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Ray reads its settings when it is imported, from the environment of each worker.
    assert "ray" not in sys.modules
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        while parent.sentinel not in wait([listener, parent.sentinel]):
            connection, _ = listener.accept()
            request, streams, *_ = socket.recv_fds(connection, 2**20, 3)
            connection.close()
            if os.fork() == 0:
                listener.close()
                _become_worker(streams, **json.loads(request))
            for stream in streams:
                os.close(stream)


def _become_worker(
    streams: list[int], environment: dict[str, str], folder: str, arguments: list[str]
) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:], sys.path[0] = arguments, os.path.dirname(arguments[0])
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        os._exit(1)
