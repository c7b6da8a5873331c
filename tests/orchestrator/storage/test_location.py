"""Locations of a storage: URLs with credentials and options."""

import pytest

from orchestrator.storage import Storage, without_credentials
from orchestrator.storage.location import (
    get_parent_location,
    is_url,
    join_location,
    list_secrets,
    split_options,
    with_access_of,
)

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


@pytest.mark.parametrize(
    ("location", "parent"),
    [
        ("/data/runs/one", "/data/runs"),
        ("/data", "/"),
        ("/", "/"),
        ("s3://bucket/runs/one/", "s3://bucket/runs"),
        ("s3://bucket/runs?region=x", "s3://bucket?region=x"),
        ("s3://bucket?region=x", "s3://bucket?region=x"),
        ("s3://AKIA:sec/ret@bucket/runs", "s3://AKIA:sec/ret@bucket"),
        ("s3://AKIA:sec/ret@bucket", "s3://AKIA:sec/ret@bucket"),
    ],
)
def test_a_bucket_and_the_root_are_their_own_parents(location: str, parent: str) -> None:
    assert get_parent_location(location) == parent


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
        ("/data/q?token=1", "/data/q?token=1"),
    ],
)
def test_credentials_are_hidden(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_the_secrets_of_a_url_are_found() -> None:
    assert list_secrets(KEYS) == ["AKIA:hunter2", "hunter2", "AKIA"]
    assert list_secrets("abfs://a/b?sas_token=abc") == ["abc"]
    assert list_secrets("s3://bucket/runs") == []


def test_another_path_of_the_same_store_is_opened_with_the_same_keys() -> None:
    assert (
        with_access_of(KEYS, "s3://bucket/other")
        == "s3://AKIA:hunter2@bucket/other?region=eu-west-1"
    )
    assert with_access_of("s3://bucket/runs", "s3://bucket/other") == "s3://bucket/other"
    assert with_access_of("runs", "/other") == "/other"


@pytest.mark.parametrize("path", ["gs://bucket/other", "ftp://host/other", "file:///other", "/x"])
def test_another_store_does_not_get_the_keys(path: str) -> None:
    assert with_access_of(KEYS, path) == path


@pytest.mark.parametrize("location", ["s3://bucket", "file:///x", "file:/x", "FILE:/x"])
def test_a_url_has_a_scheme(location: str) -> None:
    assert is_url(location)


@pytest.mark.parametrize("location", ["/x", "runs", "file", "C:/x"])
def test_a_folder_has_none(location: str) -> None:
    assert not is_url(location)


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


def test_a_root_has_itself_as_its_parent() -> None:
    for location in ("/", "memory://bucket"):
        root = Storage(location)
        assert (root.parent.location, root.parent.root) == (root.location, root.root)
        assert (root / "a").parent.location == location
