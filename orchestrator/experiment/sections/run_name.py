"""The name of a run, which is that of its folder."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.errors import UsageError, shorten, shorten_value

MAX_NAME_BYTES = 200
"""File systems allow 255, and names of trials and of files being written are longer than the run's
own."""

_PATTERN = r"^\w[\w.-]*$"
_RULE = (
    "must contain only letters, digits, `_`, `-` and `.`, must not begin with `-` or `.`,"
    f" and must be at most {MAX_NAME_BYTES} bytes long"
)


def _check_name(name: str) -> str:
    if not _is_valid(name):
        raise ValueError(f"{_RULE}, got {shorten_value(name)}")
    return name


def _is_valid(name: object) -> bool:
    if not isinstance(name, str) or not re.fullmatch(_PATTERN, name):
        return False
    return len(name.encode()) <= MAX_NAME_BYTES


RunName = Annotated[
    str,
    AfterValidator(_check_name),
    Field(json_schema_extra={"pattern": _PATTERN}),
]


def choose_run_name(name: str | None, default: str) -> str:
    """Return the name that Python code or the command line gives a run, or the default for None.

    Raises UsageError for an invalid name.
    """
    if name is None:
        return default
    if not _is_valid(name):
        raise UsageError(f"name {shorten(str(name), 43)!r} {_RULE}")
    return name
