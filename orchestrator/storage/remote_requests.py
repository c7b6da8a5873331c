"""Requests to a remote store: how often they are repeated, and what to do if they fail."""

from collections.abc import Callable
from typing import Any, TypeVar

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage.location import split_options, without_credentials
from orchestrator.storage.remote_filesystem import open_filesystem, with_retries

Answer = TypeVar("Answer")

S3_RETRIES = 12
"""How often a request to S3 is repeated, in 100 seconds."""
_FEW_RETRIES = 5
"""How often it is repeated where it probably fails again, in a second."""
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
_unresponsive: set[str] = set()
"""Stores that did not answer this process. Requests to them are hardly repeated, so that a run can
end soon."""


class RemoteRequests:
    """Sender of the requests to the store of a location.

    Attributes:
        filesystem: The store's file system, as pyarrow's.
        root: Path of the location in the file system.
    """

    def __init__(self, location: str) -> None:
        filesystem, root = open_filesystem(location)
        self.filesystem = with_retries(filesystem, S3_RETRIES)
        self.root = root.rstrip("/")
        self._impatient = with_retries(filesystem, _FEW_RETRIES)
        self._name = without_credentials(split_options(location)[0])
        self._store = "/".join(self._name.split("/")[:3])

    def send(self, call: Callable[[Any], Answer]) -> Answer:
        """Call a function with the file system, and return its answer.

        Args:
            call: The request, which may be called again.

        Raises:
            FileNotFoundError: A file or a folder does not exist.
            IsADirectoryError: A folder is in the place of a file.
            NotADirectoryError: A file is in the place of a folder.
            StorageError: The store does not answer, or refuses.
        """
        filesystem = self._impatient if self._store in _unresponsive else self.filesystem
        try:
            answer = call(filesystem)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise
        except OSError as error:
            raise self._convert(error) from error
        _unresponsive.discard(self._store)
        return answer

    def _convert(self, error: OSError) -> StorageError:
        """Return an error with advice, and remember a store that did not answer."""
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

    def reach(self, path: str) -> None:
        """Send one request for a path; raises UsageError if the store does not answer."""
        try:
            self._impatient.get_file_info(path)
        except OSError as error:
            raise UsageError(
                f"storage {self._name} cannot be reached: {without_credentials(str(error))}; check its name, the"
                " network, AWS_ENDPOINT_URL and your credentials"
            ) from error
