"""The server of the live page."""

import secrets
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from orchestrator.disk.listing import check_runs_folder, open_storage
from orchestrator.errors import UsageError
from orchestrator.serve.access import TOKEN
from orchestrator.serve.app import make_app
from orchestrator.storage.read_only import ReadOnlyStorage
from orchestrator.tables.database import get_internal_database


def serve(storage: str, host: str, port: int, announce: Callable[[str], object]) -> None:
    """Serve the live page of a storage until Ctrl-C or SIGTERM.

    `announce` is called with its address once it can be opened. Port 0 is any free one. Raises
    UsageError if the storage is not a folder of runs, or the port is taken.
    """
    check_runs_folder(open_storage(storage))
    token = secrets.token_urlsafe(32)
    server = make_server(make_app(ReadOnlyStorage(storage), token, host))
    get_internal_database()  # imports DuckDB now, rather than for the first page
    with listen(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        announce(f"http://{name}:{listener.getsockname()[1]}/?{TOKEN}={token}")
        server.run([listener])


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Make the server of an application. At its end, it waits three seconds for answers that are on
    their way."""
    config = uvicorn.Config(
        app,
        access_log=False,  # it would have the token
        log_level="warning",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of a server; raises UsageError if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen to port {port} of {host}: {error.strerror}. Use --port 0 for a free one"
        ) from None
