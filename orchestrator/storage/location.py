"""What a location says: a folder, or a URL whose options come last (`s3://bucket/runs?region=eu-west-1`)."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/@]*|[^\s@]*:[^\s@]*)@")
_SECRET_OPTION = re.compile(
    r"[?&][^\s&=]*(?:key|secret|token|password|sig|credential)[^\s&=]*=[^\s&'\"]*", re.IGNORECASE
)


def is_url(location: str) -> bool:
    """Whether a location is a URL, as against a folder of this machine."""
    return "://" in location


def joined(location: str, part: str) -> str:
    """The location of something inside another; a URL's options stay last."""
    place, options = split_options(location)
    return f"{place.rstrip('/')}/{part}{options}"


def split_options(location: str) -> tuple[str, str]:
    """A URL without its options, and the options with their question mark; a folder has none."""
    place, mark, options = location.partition("?") if is_url(location) else (location, "", "")
    return place, mark + options


def opened_like(location: str, path: str) -> str:
    """A path on the same store as a location, with the location's keys and options."""
    if not is_url(path):
        return path
    place, options = split_options(location)
    credentials = _CREDENTIALS.search(place)
    return path.replace("://", f"://{credentials[0] if credentials else ''}", 1) + options


def without_credentials(text: str) -> str:
    """A URL, or a text that speaks of some, without users, passwords and keys."""
    hidden = _SECRET_OPTION.sub(lambda found: found[0][0], _CREDENTIALS.sub("", text))
    return hidden.replace("?&", "?").rstrip("?&") if hidden != text else text


def secrets_in(location: str) -> list[str]:
    """The user, password and keys that a URL holds, longest first."""
    found = _CREDENTIALS.findall(location)
    names = [part for one in found for part in (one.rstrip("@"), *one.rstrip("@").split(":"))]
    values = [option.partition("=")[2] for option in _SECRET_OPTION.findall(location)]
    return sorted(filter(None, [*names, *values]), key=len, reverse=True)
