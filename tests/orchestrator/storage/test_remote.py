"""A store that fails, as a stand-in that counts and a clock that does not tick; the real protocol
is in test_s3."""

import uuid
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage, without_credentials
from orchestrator.storage.remote import (
    RETRY_TIMEOUT_S,
    Remote,
    join_location,
    secrets_in,
    split_options,
    with_access_of,
)

AWAY = "AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7, Couldn't connect to server"


class Time:
    """A clock that only pauses move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Failing:
    """A file system whose next calls fail."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.errors: list[OSError] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.errors:
                raise self.errors.pop(0)
            return getattr(self._filesystem, name)(*arguments)

        return call


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("orchestrator.storage.remote.monotonic", time)
    monkeypatch.setattr("orchestrator.storage.remote.sleep", time.pause)
    return time


@pytest.fixture
def remote(time: Time) -> Remote:
    remote = Remote(f"memory://{uuid.uuid4().hex}")
    remote.filesystem = Failing(remote.filesystem)
    return remote


def away(times: int) -> list[OSError]:
    return [OSError(AWAY) for _ in range(times)]


def test_requests_are_repeated_until_the_store_answers(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{remote.root}/file"
    remote.filesystem.errors = away(5)
    remote.send(BytesIO(b"whole"), path)
    remote.filesystem.errors = away(3)
    assert remote.read(path, 2) == b"ole"
    told = [
        record.message.split(f"storage memory:/{remote.root} ")[1][:15] for record in caplog.records
    ]
    assert told == ["does not answer", "answers again"] * 2


def test_silent_store_is_given_up_with_advice(remote: Remote, time: Time) -> None:
    remote.filesystem.errors = away(10_000)
    with pytest.raises(
        StorageError,
        match=rf"did not answer for {RETRY_TIMEOUT_S:g} s: .*curlCode: 7.*AWS_ENDPOINT_URL.*hookyard resume",
    ):
        remote.read(f"{remote.root}/file", 0)
    assert RETRY_TIMEOUT_S - 8 <= time.now <= RETRY_TIMEOUT_S


def test_given_up_store_gets_single_requests_until_it_answers(remote: Remote, time: Time) -> None:
    remote.filesystem.errors = away(10_000)
    for _ in range(3):
        with pytest.raises(StorageError):
            remote.infos(remote.root)
    assert time.now <= RETRY_TIMEOUT_S
    other = Remote(f"memory:/{remote.root}/inside")
    other.filesystem = remote.filesystem
    with pytest.raises(StorageError):
        other.infos(other.root)
    assert time.now <= RETRY_TIMEOUT_S, "whoever else asks the same store knows"
    remote.filesystem.errors = []
    assert remote.infos(remote.root) == []
    remote.filesystem.errors = away(4)
    assert remote.infos(remote.root) == [], "it has its patience again"


@pytest.mark.parametrize(
    "refusal",
    [
        OSError("AWS Error ACCESS_DENIED during HeadObject operation"),
        OSError("AWS Error NO_SUCH_BUCKET"),
        PermissionError("no"),
    ],
)
def test_refusal_is_not_retried(remote: Remote, time: Time, refusal: OSError) -> None:
    remote.filesystem.errors = [refusal]
    with pytest.raises(StorageError, match=r"refuses: .*check its name and your credentials"):
        remote.infos(remote.root)
    assert time.now == 0


def test_missing_file_is_not_retried(remote: Remote, time: Time) -> None:
    with pytest.raises(FileNotFoundError):
        remote.read(f"{remote.root}/none", 0)
    remote.delete(f"{remote.root}/none")
    assert (remote.filesystem.calls, time.now) == (2, 0)


def test_a_deletion_whose_answer_was_lost_is_done(remote: Remote) -> None:
    remote.send(BytesIO(b"x"), f"{remote.root}/file")
    remote.filesystem.errors = away(1)
    remote.delete(f"{remote.root}/file")
    assert remote.infos(remote.root) == []


def test_reach_sends_one_request(remote: Remote, time: Time) -> None:
    remote.reach()
    remote.filesystem.errors = away(1)
    with pytest.raises(UsageError, match=r"cannot be reached: .*AWS_ENDPOINT_URL"):
        remote.reach()
    assert time.now == 0


@pytest.mark.parametrize(
    "url", ["s3://AKIA:hunter2%zz@bucket/runs", "nowhere://AKIA:hunter2@bucket/runs?token=hunter2"]
)
def test_error_for_a_bad_location_hides_credentials(url: str) -> None:
    with pytest.raises(UsageError, match="must be a folder or a URL") as told:
        Remote(url)
    assert "hunter2" not in str(told.value)
    assert "AKIA" not in str(told.value)
    assert told.value.__suppress_context__


KEYS = "s3://AKIA:hunter2@bucket/runs?region=eu-west-1"


@pytest.mark.parametrize(
    ("location", "part", "inside"),
    [
        ("runs", "a", "runs/a"),
        ("odd?folder", "a", "odd?folder/a"),
        ("s3://bucket/runs/", "a/b", "s3://bucket/runs/a/b"),
        (
            "s3://bucket/runs?region=eu-west-1&scheme=http",
            "a",
            "s3://bucket/runs/a?region=eu-west-1&scheme=http",
        ),
    ],
)
def test_options_stay_at_the_end_of_a_url(location: str, part: str, inside: str) -> None:
    assert join_location(location, part) == inside


def test_only_urls_have_options() -> None:
    assert split_options("s3://bucket/runs?region=x") == ("s3://bucket/runs", "?region=x")
    assert split_options("odd?folder") == ("odd?folder", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (KEYS, "s3://bucket/runs?region=eu-west-1"),
        ("s3://AKIA:sec/ret@bucket/runs", "s3://bucket/runs"),
        ("ftp://me@host/runs", "ftp://host/runs"),
        (
            "Cannot parse URI: 's3://AKIA:tes%zz@bucket/x' due to",
            "Cannot parse URI: 's3://bucket/x' due to",
        ),
        ("abfs://runs@account.dfs/a?sas_token=abc&x=1", "abfs://account.dfs/a?x=1"),
        ("--storage=s3://a:b@c/d", "--storage=s3://c/d"),
        ("s3://bucket/team@work/runs", "s3://bucket/team@work/runs"),
        ("me@work, why?", "me@work, why?"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_the_secrets_of_a_url_are_found() -> None:
    assert secrets_in(KEYS) == ["AKIA:hunter2", "hunter2", "AKIA"]
    assert secrets_in("abfs://a/b?sas_token=abc") == ["abc"]
    assert secrets_in("s3://bucket/runs") == []


def test_another_path_of_the_same_store_is_opened_with_the_same_keys() -> None:
    assert (
        with_access_of(KEYS, "s3://bucket/other")
        == "s3://AKIA:hunter2@bucket/other?region=eu-west-1"
    )
    assert with_access_of("s3://bucket/runs", "s3://bucket/other") == "s3://bucket/other"
    assert with_access_of("runs", "/other") == "/other"


def test_a_storage_is_handed_over_with_its_keys_and_shown_without() -> None:
    storage = Storage(KEYS) / "first"
    assert storage.location == "s3://AKIA:hunter2@bucket/runs/first?region=eu-west-1"
    assert str(storage) == "s3://bucket/runs/first?region=eu-west-1"
    assert (storage.path, storage.name, storage.root) == (
        "s3://bucket/runs/first",
        "first",
        "bucket/runs/first",
    )
    assert (
        storage.at("s3://bucket/runs/second").location
        == "s3://AKIA:hunter2@bucket/runs/second?region=eu-west-1"
    )
