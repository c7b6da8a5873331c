"""Stores that fail; runs on a whole S3 server are in test_s3."""

import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage.remote import Remote

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
def remote() -> Remote:
    remote = Remote(f"memory://{uuid.uuid4().hex}")
    remote.filesystem = Failing(remote.filesystem)
    return remote


def test_error_of_a_silent_store_gives_advice(remote: Remote) -> None:
    remote.filesystem.errors = [OSError(AWAY)]
    with pytest.raises(
        StorageError, match=r"did not answer: .*curlCode: 7.*AWS_ENDPOINT_URL.*hookyard resume"
    ):
        remote.read(f"{remote.root}/file", 0)


@pytest.mark.parametrize(
    "refusal",
    [
        OSError("AWS Error ACCESS_DENIED during HeadObject operation"),
        OSError("AWS Error NO_SUCH_BUCKET"),
        PermissionError("no"),
    ],
)
def test_error_of_a_refusal_gives_advice(remote: Remote, refusal: OSError) -> None:
    remote.filesystem.errors = [refusal]
    with pytest.raises(StorageError, match=r"refuses: .*check its name and your credentials"):
        remote.list_infos(remote.root)


def test_a_missing_file_can_be_deleted_but_not_read(remote: Remote) -> None:
    with pytest.raises(FileNotFoundError):
        remote.read(f"{remote.root}/none", 0)
    remote.delete(f"{remote.root}/none")


def test_error_of_a_location_that_cannot_be_reached_gives_advice() -> None:
    remote = Remote("memory://unreachable")
    remote._impatient = Failing(remote._impatient)
    remote._impatient.errors = [OSError(AWAY)]
    with pytest.raises(UsageError, match=r"cannot be reached: .*AWS_ENDPOINT_URL"):
        remote.reach()


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
def overloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Remote, type[Overloaded]]]:
    handler = type("Handler", (Overloaded,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{server.server_port}"
    monkeypatch.setattr("orchestrator.storage.remote.S3_RETRIES", 7)
    yield Remote(f"s3://key:secret@bucket/{uuid.uuid4().hex}?{options}"), handler
    server.shutdown()
    server.server_close()


def test_requests_to_s3_are_repeated(overloaded: tuple[Remote, type[Overloaded]]) -> None:
    remote, server = overloaded
    server.remaining = 7
    assert remote.list_infos(remote.root) == []
    assert server.requests == 8


def test_requests_to_a_store_that_did_not_answer_are_hardly_repeated(
    overloaded: tuple[Remote, type[Overloaded]],
) -> None:
    remote, server = overloaded
    server.remaining = 14
    for requests in (8, 14):
        with pytest.raises(StorageError, match="did not answer"):
            remote.list_infos(remote.root)
        assert server.requests == requests

    assert remote.list_infos(remote.root) == []
    server.remaining = 7
    assert remote.list_infos(remote.root) == [], "it has its patience again"


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hunter2%zz@bucket/runs", "nowhere://AKIA:hunter2@bucket/runs?token=hunter2"]
)
def test_error_for_a_bad_location_hides_credentials(url: str) -> None:
    with pytest.raises(UsageError, match="must be a folder or a URL") as told:
        Remote(url)
    assert "hunter2" not in str(told.value)
    assert "AKIA" not in str(told.value)
    assert told.value.__suppress_context__
