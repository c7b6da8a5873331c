"""Locations of a storage: a folder, or a URL whose options come last
(`s3://bucket/runs?region=eu-west-1`)."""

import posixpath
import re
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.errors import UsageError

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/@]*|[^\s@]*:[^\s@]*)@")
_SECRET_OPTION = re.compile(
    r"[?&][^\s&=]*(?:key|secret|token|password|sig|credential)[^\s&=]*=[^\s&'\"]*", re.IGNORECASE
)


def is_url(location: str) -> bool:
    """Return whether a location is a URL, and not the path of a local folder."""
    return "://" in location or is_file_url(location)


def is_file_url(location: str) -> bool:
    """Return whether a location is a `file:` URL, also one with a single slash."""
    return location.lower().startswith("file:/")


def read_file_url(url: str) -> str:
    """Return the absolute path of a `file:` URL on this machine; raises UsageError for any other."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{url!r} is not a valid URL: {error}") from error
    if parts.netloc.lower() not in ("", "localhost"):
        raise UsageError(
            f"{url!r} is on the host {parts.netloc!r}, but a file URL must be on this machine: "
            "write file:/// and an absolute path, or the path alone"
        )
    if parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} has options, but a folder has none: if they belong to its name, write ? as "
            "%3F and # as %23, or the path alone"
        )
    if not parts.path:
        raise UsageError(f"{url!r} has no path: write file:/// and an absolute path")
    return url2pathname(parts.path)


def join_location(location: str, part: str) -> str:
    """Return the location of a part; a URL's options stay last."""
    path, options = split_options(location)
    return f"{path.rstrip('/')}/{part}{options}"


def get_parent_location(location: str) -> str:
    """Return the location of the folder around; a bucket and the root of this machine are their
    own, as the root is in pathlib."""
    folder, options = split_options(location)
    credentials = _CREDENTIALS.search(folder)
    start = folder.find("://") + 3 if is_url(folder) else 0
    if credentials:
        start = credentials.end()
    path = folder[start:].rstrip("/")
    if is_url(folder) and "/" not in path:
        return location
    return folder[:start] + (posixpath.dirname(path) or "/") + options


def split_options(location: str) -> tuple[str, str]:
    """Split a URL into its path, and its options with their question mark; a folder has none."""
    if not is_url(location):
        return location, ""
    path, mark, options = location.partition("?")
    return path, mark + options


def with_access_of(location: str, path: str) -> str:
    """Return a path with the credentials and options of a location, unless it is on another kind of
    store, for which they are not meant."""
    if not is_url(path) or _get_scheme(path) != _get_scheme(location):
        return path
    store, options = split_options(location)
    match = _CREDENTIALS.search(store)
    credentials = match[0] if match else ""
    return split_options(path)[0].replace("://", f"://{credentials}", 1) + options


def _get_scheme(location: str) -> str:
    return location.partition("://")[0]


def without_credentials(text: str) -> str:
    """Return a text without the users, passwords and keys of URLs in it; a folder has none."""
    if not is_url(text):
        return text
    hidden = _SECRET_OPTION.sub(lambda match: match[0][0], _CREDENTIALS.sub("", text))
    return hidden.replace("?&", "?").rstrip("?&") if hidden != text else text


def list_secrets(location: str) -> list[str]:
    """Return the user, password and keys in a URL, longest first."""
    secrets = [option.partition("=")[2] for option in _SECRET_OPTION.findall(location)]
    for login in _CREDENTIALS.findall(location):
        name_and_password = login.rstrip("@")
        secrets += [name_and_password, *name_and_password.split(":")]
    return sorted(filter(None, secrets), key=len, reverse=True)
