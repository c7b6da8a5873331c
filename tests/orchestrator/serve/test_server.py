"""`hookyard serve`, as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.errors import UsageError
from orchestrator.serve.server import listen
from tests.orchestrator.tables.test_run_index import write_run


def test_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path, "first")
    command = [sys.executable, "-m", "orchestrator", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            address = urlsplit(process.stdout.readline().strip())
            connection = HTTPConnection("127.0.0.1", address.port or 0)
            for path in (f"/?{address.query}", "/", f"/runs/none?{address.query}x"):
                connection.request("GET", path)
                connection.getresponse().read()
            connection.close()
        finally:
            os.kill(process.pid, signal.SIGINT)
        written, said = process.communicate(timeout=60)
    token = address.query.removeprefix("token=")
    assert (address.hostname, len(token) >= 43) == ("127.0.0.1", True)
    assert (process.returncode, written) == (0, "")
    assert said == "Stopped serving. Runs go on.\n"


def test_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"cannot listen to port {port} of 127\.0\.0\.1.*--port 0"
        ):
            listen("127.0.0.1", port)


def test_name_that_is_not_this_machine_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"cannot listen to port 8710 of 192\.0\.2\.1"):
        listen("192.0.2.1", 8710)
