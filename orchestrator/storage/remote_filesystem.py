"""File systems of pyarrow or fsspec, opened by the URL of a location."""

from contextlib import suppress
from typing import Any, cast

from orchestrator.errors import UsageError
from orchestrator.storage.location import list_secrets, without_credentials

CONNECTIONS = 32
"""Concurrent requests of this process."""


def open_filesystem(location: str) -> tuple[Any, str]:
    """Open the file system of a URL, by pyarrow if it knows the scheme, otherwise by fsspec.

    Args:
        location: The URL, with options and credentials.

    Returns:
        The file system, as pyarrow's, and the path of the location in it.

    Raises:
        UsageError: Neither knows the scheme, or the URL is wrong.
    """
    from pyarrow import fs

    try:
        return _open_by_pyarrow(location)
    except Exception as pyarrow_error:
        try:
            import fsspec

            system, root = fsspec.core.url_to_fs(location)
            return fs.PyFileSystem(fs.FSSpecHandler(system)), root
        except Exception as fsspec_error:
            reasons = without_credentials(f"{pyarrow_error}; {fsspec_error}")
            for secret in list_secrets(location):
                reasons = reasons.replace(secret, "***")
            raise UsageError(
                f"storage '{without_credentials(location)}' must be a folder or a URL of pyarrow or fsspec: {reasons}"
            ) from None


def _open_by_pyarrow(location: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    if not location.startswith("s3://"):
        return cast(tuple[Any, str], fs.FileSystem.from_uri(location))
    # An S3 client opens as many connections as Arrow has I/O threads.
    pa.set_io_thread_count(max(CONNECTIONS, pa.io_thread_count()))
    mark = "&" if "?" in location else "?"
    with suppress(pa.ArrowInvalid):  # the option is unknown to an older pyarrow, or already set
        # With this option a small file takes one request instead of three.
        return cast(
            tuple[Any, str], fs.FileSystem.from_uri(f"{location}{mark}allow_delayed_open=true")
        )
    return cast(tuple[Any, str], fs.FileSystem.from_uri(location))


def with_retries(filesystem: Any, retries: int) -> Any:
    """Return a file system that repeats a request up to `retries` times if it is S3's, and any
    other one unchanged: their packages repeat requests as they do."""
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsDefaultS3RetryStrategy

    # A URL cannot name the strategy. All requests of the standard one share a small quota of retries.
    make, (options,) = filesystem.__reduce__()
    return make({**options, "retry_strategy": AwsDefaultS3RetryStrategy(retries)})
