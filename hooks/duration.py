"""Durations: `300` seconds, `90s`, `5m`, `2h30m`, `1d 12h`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PATTERN = r"^(?=.*\d)" + "".join(rf"\s*(?:(\d+(?:\.\d+)?)\s*{unit})?" for unit in _UNITS) + r"\s*$"


def parse_duration(value: Any) -> float:
    """Return a duration in seconds, or raise ValueError."""
    seconds = value
    if isinstance(value, str) and (match := re.match(_PATTERN, value)):
        seconds = sum(float(count or 0) * unit for count, unit in zip(match.groups(), _UNITS.values(), strict=True))
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(
            f"must be a duration greater than 0: seconds, or text such as 90s, 5m or 2h30m, got {value!r:.80}"
        )
    return float(seconds)


class _Seconds:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(parse_duration)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": _PATTERN}]}


Duration = Annotated[float, _Seconds()]
"""Seconds, written as a number or as 90s, 5m, 2h30m, 1d."""
