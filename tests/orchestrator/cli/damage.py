"""Ways in which a file may be harmed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

OTHERS: tuple[Any, ...] = (None, 5, -1, 0.5, True, "x", "", [], [5], {}, {"x": 5})


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Each way with what it makes of a file's bytes."""
    yield "empty", b""
    yield "half", data[: len(data) // 2]
    yield "binary", b"\xff\xfe\x00" * 20
    yield "deep", b"[" * 100_000
    for place in range(0, len(data), max(1, len(data) // 8)):
        yield f"bit {place}", data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
    for other in OTHERS:
        yield f"all {other!r}", json.dumps(other).encode()


def json_damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A JSON text with each of its keys gone, or with another value; of JSON Lines, those of the last line."""
    *before, last = data.decode().strip().split("\n") if data.strip().count(b"}\n{") else [data.decode()]
    for what, value in _changed(json.loads(last)):
        yield what, "\n".join([*before, json.dumps(value), ""]).encode()


def _changed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:40]:
        if isinstance(value, dict):
            yield f"without {path}.{key}", {name: one for name, one in value.items() if name != key}
        for other in OTHERS:
            yield f"{path}.{key} = {other!r}", _with(value, key, other)
        for what, changed in _changed(inner, f"{path}.{key}"):
            yield what, _with(value, key, changed)


def _with(value: Any, key: Any, item: Any) -> Any:
    again = value.copy()
    again[key] = item
    return again
