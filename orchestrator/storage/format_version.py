"""The number of the format of a run's files, and the refusal of a later one."""

from typing import Any

from orchestrator.errors import NewerFormat

FORMAT = 1
"""Format that this version writes. A change that earlier versions would misread needs the next
number."""
FORMAT_KEY = "format"
"""Entry of a JSON file with the number."""
METADATA_KEY = b"hookyard.format"
"""Metadata of an Arrow stream or a Parquet file with the number."""


def check_format(number: Any, place: object) -> None:
    """Raise NewerFormat for the number of a later version, and ValueError for anything but a
    number."""
    if type(number) is not int or number < 1:
        raise ValueError(f"its format must be a number from 1, got {number!r}")
    if number > FORMAT:
        raise NewerFormat(str(place), number, FORMAT)


def check_metadata(metadata: Any, place: object) -> None:
    """Check the format in the metadata of an Arrow stream or a Parquet file; it may have none."""
    number = (metadata or {}).get(METADATA_KEY, b"")
    if number.isdigit():
        check_format(int(number), place)
