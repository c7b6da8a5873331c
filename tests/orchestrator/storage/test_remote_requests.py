"""Stores that fail; runs on a whole S3 server are in test_s3."""

import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pyarrow.fs import FileSelector

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage.remote_requests import RemoteRequests

AWAY = "AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7, Couldn't connect to server"


class Failing:
    """A file system whose next calls fail."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.errors: list[OSError] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.errors:
                raise self.errors.pop(0)
            return getattr(self._filesystem, name)(*arguments)

        return call


@pytest.fixture
def requests() -> RemoteRequests:
    requests = RemoteRequests(f"memory://{uuid.uuid4().hex}")
    requests.filesystem = Failing(requests.filesystem)
    return requests


def list_root(requests: RemoteRequests) -> Any:
    selector = FileSelector(requests.root, allow_not_found=True)
    return requests.send(lambda filesystem: filesystem.get_file_info(selector))


def test_error_of_a_silent_store_gives_advice(requests: RemoteRequests) -> None:
    requests.filesystem.errors = [OSError(AWAY)]
    with pytest.raises(
        StorageError, match=r"did not answer: .*curlCode: 7.*AWS_ENDPOINT_URL.*hookyard resume"
    ):
        list_root(requests)


@pytest.mark.parametrize(
    "refusal",
    [
        OSError("AWS Error ACCESS_DENIED during HeadObject operation"),
        OSError("AWS Error NO_SUCH_BUCKET"),
        PermissionError("no"),
    ],
)
def test_error_of_a_refusal_gives_advice(requests: RemoteRequests, refusal: OSError) -> None:
    requests.filesystem.errors = [refusal]
    with pytest.raises(StorageError, match=r"refuses: .*check its name and your credentials"):
        list_root(requests)


@pytest.mark.parametrize("kind", [FileNotFoundError, IsADirectoryError, NotADirectoryError])
def test_what_is_at_a_path_is_no_error_of_the_store(
    requests: RemoteRequests, kind: type[OSError]
) -> None:
    requests.filesystem.errors = [kind("x")]
    with pytest.raises(kind):
        list_root(requests)


def test_error_of_a_location_that_cannot_be_reached_gives_advice() -> None:
    requests = RemoteRequests("memory://unreachable")
    requests._impatient = Failing(requests._impatient)
    requests._impatient.errors = [OSError(AWAY)]
    with pytest.raises(UsageError, match=r"cannot be reached: .*AWS_ENDPOINT_URL"):
        requests.reach(requests.root)


class Overloaded(BaseHTTPRequestHandler):
    """An S3 server that tells clients to slow down, and then lists nothing."""

    remaining = 0
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        is_overloaded = self.remaining > 0
        type(self).remaining -= 1
        self.send_response(503 if is_overloaded else 200)
        body = b"" if is_overloaded else b"<ListBucketResult></ListBucketResult>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def overloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[RemoteRequests, type[Overloaded]]]:
    handler = type("Handler", (Overloaded,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{server.server_port}"
    monkeypatch.setattr("orchestrator.storage.remote_requests.S3_RETRIES", 7)
    yield RemoteRequests(f"s3://key:secret@bucket/{uuid.uuid4().hex}?{options}"), handler
    server.shutdown()
    server.server_close()


def test_requests_to_s3_are_repeated(overloaded: tuple[RemoteRequests, type[Overloaded]]) -> None:
    requests, server = overloaded
    server.remaining = 7
    assert list_root(requests) == []
    assert server.requests == 8


def test_requests_to_a_store_that_did_not_answer_are_hardly_repeated(
    overloaded: tuple[RemoteRequests, type[Overloaded]],
) -> None:
    requests, server = overloaded
    server.remaining = 14
    for count in (8, 14):
        with pytest.raises(StorageError, match="did not answer"):
            list_root(requests)
        assert server.requests == count

    assert list_root(requests) == []
    server.remaining = 7
    assert list_root(requests) == [], "it has its patience again"
