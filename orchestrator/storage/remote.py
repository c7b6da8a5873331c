"""Remote file systems: object stores, and others that pyarrow or fsspec open by a URL."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage.location import list_secrets, split_options, without_credentials

T = TypeVar("T")

S3_RETRIES = 12
"""How often a request to S3 is repeated, in 100 seconds. Other stores repeat requests as their
packages do."""
_FEW_RETRIES = 5
"""How often it is repeated where it probably fails again, in a second."""
_PIECE_BYTES = 32 * 2**20

_REFUSALS = (
    "ACCESS_DENIED",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "INVALID_SIGNATURE",
    "UNRECOGNIZED_CLIENT",
    "MISSING_AUTHENTICATION_TOKEN",
    "VALIDATION",
    "NO_SUCH_BUCKET",
    "HTTP status 301",
    "HTTP status 400",
)
"""Substrings of the errors of a store that answers, but refuses."""

CONNECTIONS = 32
"""Concurrent requests of this process."""

_unresponsive: set[str] = set()
"""Stores that did not answer. Requests to them are hardly repeated, so that a run can end soon."""


class Remote:
    """An object store, or another file system of pyarrow or fsspec. Folders of a storage share it.

    Data stays on the local disk until it is sent, so the file system can repeat every request.
    Raises StorageError for no answer or a refused request.
    """

    def __init__(self, location: str) -> None:
        filesystem, root = _open(location)
        self.filesystem = _with_retries(filesystem, S3_RETRIES)
        self._impatient = _with_retries(filesystem, _FEW_RETRIES)
        self.root = root.rstrip("/")
        self._name = without_credentials(split_options(location)[0])
        self._store = "/".join(self._name.split("/")[:3])

    def request(self, call: Callable[[Any], T]) -> T:
        """Call a function with the file system; raises StorageError."""
        is_unresponsive = self._store in _unresponsive
        try:
            answer = call(self._impatient if is_unresponsive else self.filesystem)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise
        except OSError as error:
            raise self._convert(error) from error
        _unresponsive.discard(self._store)
        return answer

    def _convert(self, error: OSError) -> StorageError:
        reason = without_credentials(str(error))
        if isinstance(error, PermissionError) or any(word in str(error) for word in _REFUSALS):
            return StorageError(
                f"storage {self._name} refuses: {reason}; check its name and your credentials (AWS_ACCESS_KEY_ID ...)"
            )
        _unresponsive.add(self._store)
        return StorageError(
            f"storage {self._name} did not answer: {reason}; check the network and AWS_ENDPOINT_URL, then continue with"
            " `hookyard resume`"
        )

    def reach(self) -> None:
        """Send one request; raises UsageError if the store does not answer."""
        try:
            self._impatient.get_file_info(self.root)
        except OSError as error:
            raise UsageError(
                f"storage {self._name} cannot be reached: {without_credentials(str(error))}; check its name, the"
                " network, AWS_ENDPOINT_URL and your credentials"
            ) from error

    def list_infos(self, path: str, recursive: bool = False) -> list[Any]:
        """Return the file infos in a folder; empty if there is none."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            return self.request(
                lambda filesystem: cast(list[Any], filesystem.get_file_info(selector))
            )
        except NotADirectoryError:
            return []

    def read(self, path: str, start: int, size: int | None = None) -> bytes:
        """Return up to `size` bytes of a file from `start` on."""

        def read(filesystem: Any) -> bytes:
            with filesystem.open_input_file(path) as file:
                file.seek(start)
                return cast(bytes, file.read(size))

        return self.request(read)

    def read_chunks(self, path: str) -> Iterator[bytes]:
        """Yield a file in pieces that fit into memory."""
        start = 0
        while piece := self.read(path, start, _PIECE_BYTES):
            start += len(piece)
            yield piece

    def send(self, file: IO[bytes], path: str) -> None:
        """Upload a file; after a failure, delete what may be incomplete."""

        def put(filesystem: Any) -> None:
            file.seek(0)
            with filesystem.open_output_stream(path) as stream:
                shutil.copyfileobj(file, stream, _PIECE_BYTES)

        try:
            self.request(put)
        except StorageError:
            # A broken upload may have left an incomplete file.
            with suppress(OSError):
                self.filesystem.delete_file(path)
            raise

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content, if it exists."""

        def delete(filesystem: Any) -> None:
            kind = filesystem.get_file_info(path).type.name
            with suppress(FileNotFoundError):
                if kind == "Directory":
                    filesystem.delete_dir(path)
                elif kind != "NotFound":
                    filesystem.delete_file(path)

        self.request(delete)


def _with_retries(filesystem: Any, retries: int) -> Any:
    """Return a file system that repeats requests so often, if it is S3's."""
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsDefaultS3RetryStrategy

    # A URL cannot name the strategy. All requests of the standard one share a small quota of retries.
    make, (options,) = filesystem.__reduce__()
    return make({**options, "retry_strategy": AwsDefaultS3RetryStrategy(retries)})


def _open(location: str) -> tuple[Any, str]:
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
    with suppress(pa.ArrowInvalid):  # the option is unknown to an older pyarrow, or already set
        # With this option a small file takes one request instead of three.
        delayed = f"{location}{'&' if '?' in location else '?'}allow_delayed_open=true"
        return cast(tuple[Any, str], fs.FileSystem.from_uri(delayed))
    return cast(tuple[Any, str], fs.FileSystem.from_uri(location))
