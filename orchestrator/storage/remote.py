"""A file system that another machine keeps, asked again while it does not answer."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any, TypeVar, cast

from orchestrator.errors import StorageError, UsageError
from orchestrator.storage.location import secrets_in, split_options, without_credentials

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long a storage that does not answer is asked again before it is given up."""
LONGEST_PAUSE_S = 8.0
_PIECE_BYTES = 8 * 2**20

REFUSALS = (
    *(
        "ACCESS_DENIED",
        "SIGNATURE_DOES_NOT_MATCH",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "INVALID_SIGNATURE",
    ),
    *(
        "UNRECOGNIZED_CLIENT",
        "MISSING_AUTHENTICATION_TOKEN",
        "VALIDATION",
        "NO_SUCH_BUCKET",
        "HTTP status 301",
        "HTTP status 400",
    ),
)
"""Words of an answer that would be the same a second later."""

CONNECTIONS = 32
"""How many requests may be under way at a time in this process."""

_silent: set[str] = set()
"""The stores that are asked again by this process just now."""
_given_up: set[str] = set()
"""The stores that stayed away from this process and have not answered since."""

_log = logging.getLogger("hookyard")


class Remote:
    """An object store, or whatever else pyarrow or fsspec reaches. Runs in every process; shared by the parts of a
    storage.

    What is written lies on this machine's disk until it is sent, so that it can be sent again. Every call is repeated
    while the store does not answer, for PATIENCE_S; one that was given up is asked once a call until it answers.
    Raises StorageError where it stays away or refuses.
    """

    def __init__(
        self, location: str, *, clock: Callable[[], float] = monotonic, pause: Callable[[float], None] = sleep
    ) -> None:
        self.filesystem, root = _opened(location)
        self.root = root.rstrip("/")
        self._name = without_credentials(split_options(location)[0])
        self._store = "/".join(self._name.split("/")[:3])
        self._clock, self._pause = clock, pause

    def root_of(self, path: str) -> str | None:
        """Where in the file system a URL of the same store lies; None where that cannot be told, or it is of
        another."""
        here, there = self._name.rstrip("/").partition("://")[2], path.rstrip("/").partition("://")[2]
        same = "/".join(path.split("/")[:3]) == self._store and self.root.endswith(here)
        return self.root.removesuffix(here) + there if same and here and there else None

    def ask(self, call: Callable[[Any], T]) -> T:
        """What a call of the file system gives. Call it with nothing that may not be done twice."""
        until, wait, away = self._clock() + PATIENCE_S, 0.25, False
        while True:
            try:
                answer = call(self.filesystem)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise
            except OSError as error:
                self._give_up_unless(error, self._clock() + wait < until)
                if self._store not in _silent:
                    _silent.add(self._store)
                    _log.warning(
                        "storage %s does not answer, and is asked for up to %g s: %s",
                        self._name,
                        PATIENCE_S,
                        without_credentials(str(error)),
                    )
                away = True
                self._pause(wait)
                wait = min(2 * wait, LONGEST_PAUSE_S)
                continue
            if away and self._store in _silent:
                _silent.discard(self._store)
                _log.warning("storage %s answers again", self._name)
            _given_up.discard(self._store)
            return answer

    def _give_up_unless(self, error: OSError, time_is_left: bool) -> None:
        if isinstance(error, PermissionError) or any(word in str(error) for word in REFUSALS):
            raise StorageError(
                f"storage {self._name} refuses: {without_credentials(str(error))}. Check its name, and the credentials"
                " this process has (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's own role)"
            ) from error
        if self._store in _given_up or not time_is_left:
            _given_up.add(self._store)
            _silent.discard(self._store)
            raise StorageError(
                f"storage {self._name} does not answer, and was asked for {PATIENCE_S:g} s:"
                f" {without_credentials(str(error))}. Check the endpoint (AWS_ENDPOINT_URL) and the network; when it is"
                " back, hookyard resume goes on from the last checkpoint"
            ) from error

    def reach(self) -> None:
        """Asks once whether the store is there; raises UsageError where it is not, or refuses."""
        try:
            self.filesystem.get_file_info(self.root)
        except OSError as error:
            raise UsageError(
                f"storage {self._name} cannot be reached: {without_credentials(str(error))}. Check its "
                "name, the endpoint (AWS_ENDPOINT_URL), the network and the credentials (AWS_ACCESS_KEY_ID ...)"
            ) from error

    def infos(self, path: str, recursive: bool = False) -> list[Any]:
        """What lies in a folder, and in those in it where that is asked; nothing where there is none."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        try:
            return self.ask(lambda there: cast(list[Any], there.get_file_info(selector)))
        except NotADirectoryError:
            return []

    def read(self, path: str, start: int) -> bytes:
        """A file's bytes, from a place on."""

        def take(filesystem: Any) -> bytes:
            with filesystem.open_input_file(path) as file:
                file.seek(start)
                return cast(bytes, file.read())

        return self.ask(take)

    def pieces(self, path: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece; where they break off they go on."""
        opened: list[Any] = []
        start = 0

        def take(filesystem: Any) -> bytes:
            file = opened.pop() if opened else filesystem.open_input_file(path)
            file.seek(start)
            piece = cast(bytes, file.read(_PIECE_BYTES))
            opened.append(file)
            return piece

        while piece := self.ask(take):
            start += len(piece)
            yield piece

    def send(self, file: IO[bytes], path: str) -> None:
        """Puts a local file into its place, whole."""

        def put(filesystem: Any) -> None:
            file.seek(0)
            with filesystem.open_output_stream(path) as stream:
                shutil.copyfileobj(file, stream, _PIECE_BYTES)

        try:
            self.ask(put)
        except StorageError:
            # A stream that broke off may have left the part that it had sent.
            with suppress(OSError):
                self.filesystem.delete_file(path)
            raise

    def delete(self, path: str) -> None:
        """Removes a file or a folder with all in it; nothing where there is none."""

        def remove(filesystem: Any) -> None:
            if filesystem.type_name == "s3":
                # Which of the two it is needs no request of its own.
                with suppress(FileNotFoundError):
                    filesystem.delete_file(path)
                    return
            info = filesystem.get_file_info(path)
            with suppress(FileNotFoundError):
                if info.type.name != "NotFound":
                    (filesystem.delete_dir if info.type.name == "Directory" else filesystem.delete_file)(info.path)

        self.ask(remove)

    def upload(self, folder: Path, path: str) -> None:
        """Copies a local folder."""
        from pyarrow import fs

        here = fs.LocalFileSystem()
        self.ask(lambda there: fs.copy_files(str(folder), path, source_filesystem=here, destination_filesystem=there))


def _opened(location: str) -> tuple[Any, str]:
    from pyarrow import fs

    try:
        found = _opened_by_pyarrow(location)
    except Exception as from_pyarrow:
        try:
            import fsspec

            system, root = fsspec.core.url_to_fs(location)
            found = fs.PyFileSystem(fs.FSSpecHandler(system)), root
        except Exception as from_fsspec:
            reasons = without_credentials(f"{from_pyarrow}; {from_fsspec}")
            for secret in secrets_in(location):
                reasons = reasons.replace(secret, "***")
            raise UsageError(
                f"storage '{without_credentials(location)}' cannot be opened: {reasons}. "
                "Give a folder, or a URL that pyarrow or an installed fsspec package knows."
            ) from None
    return found


def _opened_by_pyarrow(location: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    if not location.startswith("s3://"):
        return cast(tuple[Any, str], fs.FileSystem.from_uri(location))
    # A client of S3 keeps as many connections as Arrow has threads for files.
    pa.set_io_thread_count(max(CONNECTIONS, pa.io_thread_count()))
    try:
        # What is small is one request then, in place of the three of an upload in parts.
        return cast(
            tuple[Any, str],
            fs.FileSystem.from_uri(f"{location}{'&' if '?' in location else '?'}allow_delayed_open=true"),
        )
    except pa.ArrowInvalid:  # of a pyarrow that does not know the option, or where it is given
        return cast(tuple[Any, str], fs.FileSystem.from_uri(location))
