"""JSON files in a storage: written with the number of their format, checked when they are read."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from orchestrator.errors import DamagedFile
from orchestrator.storage.format_version import FORMAT, FORMAT_KEY, check_format
from orchestrator.storage.storage import Storage
from orchestrator.storage.strict_json import format_json, parse_json

T = TypeVar("T")


def format_file(entries: Mapping[str, Any], indent: int | None = 1) -> str:
    """Return the text of a JSON file, with its format."""
    return format_json({**entries, FORMAT_KEY: FORMAT}, indent)


def write_json(storage: Storage, name: str, entries: Mapping[str, Any]) -> None:
    """Write an indented JSON file with its format."""
    storage.write(name, format_file(entries))


def read_json(storage: Storage, name: str, read: Callable[[Any], T], advice: str) -> T:
    """Return the content of a JSON file.

    Args:
        storage: The folder of the file.
        name: Name of the file.
        read: Converts the content, and raises ValueError if it is invalid.
        advice: What to do about a damaged file.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: The content is invalid.
        NewerFormat: A later version wrote the file.
    """
    try:
        return read(parse_file(storage.read(name), storage / name))
    except ValueError as error:
        raise DamagedFile(str(storage / name), str(error), advice) from error


def parse_file(data: bytes, place: object) -> Any:
    """Return the content of a JSON file without its format; raises ValueError or NewerFormat.

    Args:
        data: The bytes of the file.
        place: The file, for the message.
    """
    content = parse_json(data)
    if isinstance(content, dict):
        check_format(content.pop(FORMAT_KEY, FORMAT), place)
    return content
