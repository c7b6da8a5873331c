"""Locations: a folder, or a URL whose options come last (`s3://bucket/runs?region=eu-west-1`)."""

from __future__ import annotations

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
    path, mark, options = location.partition("?") if is_url(location) else (location, "", "")
    return path, mark + options


def with_access_of(location: str, path: str) -> str:
    """Return a path with the credentials and options of a location on the same store."""
    if not is_url(path):
        return path
    store, options = split_options(location)
    credentials = _CREDENTIALS.search(store)
    return path.replace("://", f"://{credentials[0] if credentials else ''}", 1) + options


def without_credentials(text: str) -> str:
    """Return a text without the users, passwords and keys of URLs in it."""
    hidden = _SECRET_OPTION.sub(lambda match: match[0][0], _CREDENTIALS.sub("", text))
    return hidden.replace("?&", "?").rstrip("?&") if hidden != text else text


def secrets_in(location: str) -> list[str]:
    """Return the user, password and keys in a URL, longest first."""
    logins = [login.rstrip("@") for login in _CREDENTIALS.findall(location)]
    names = [part for login in logins for part in (login, *login.split(":"))]
    values = [option.partition("=")[2] for option in _SECRET_OPTION.findall(location)]
    return sorted(filter(None, [*names, *values]), key=len, reverse=True)
