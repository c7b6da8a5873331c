"""Locations of a storage: a folder, or a URL whose options come last
(`s3://bucket/runs?region=eu-west-1`)."""

import re

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/@]*|[^\s@]*:[^\s@]*)@")
_SECRET_OPTION = re.compile(
    r"[?&][^\s&=]*(?:key|secret|token|password|sig|credential)[^\s&=]*=[^\s&'\"]*", re.IGNORECASE
)


def is_url(location: str) -> bool:
    """Return whether a location is a URL, and not a local folder."""
    return "://" in location


def join_location(location: str, part: str) -> str:
    """Return the location of a part; a URL's options stay last."""
    path, options = split_options(location)
    return f"{path.rstrip('/')}/{part}{options}"


def split_options(location: str) -> tuple[str, str]:
    """Split a URL into its path, and its options with their question mark; a folder has none."""
    if not is_url(location):
        return location, ""
    path, mark, options = location.partition("?")
    return path, mark + options


def with_access_of(location: str, path: str) -> str:
    """Return a path with the credentials and options of a location on the same store; a local one
    has none."""
    if not (is_url(path) and is_url(location)):
        return path
    store, options = split_options(location)
    match = _CREDENTIALS.search(store)
    credentials = match[0] if match else ""
    return split_options(path)[0].replace("://", f"://{credentials}", 1) + options


def without_credentials(text: str) -> str:
    """Return a text without the users, passwords and keys of URLs in it."""
    hidden = _SECRET_OPTION.sub(lambda match: match[0][0], _CREDENTIALS.sub("", text))
    return hidden.replace("?&", "?").rstrip("?&") if hidden != text else text


def list_secrets(location: str) -> list[str]:
    """Return the user, password and keys in a URL, longest first."""
    secrets = [option.partition("=")[2] for option in _SECRET_OPTION.findall(location)]
    for login in _CREDENTIALS.findall(location):
        name_and_password = login.rstrip("@")
        secrets += [name_and_password, *name_and_password.split(":")]
    return sorted(filter(None, secrets), key=len, reverse=True)
