"""Durations: `300` seconds, `90s`, `5m`, `1d 12h`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

_SECONDS_PER_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBERS = "".join(rf"\s*(?:(\d+(?:\.\d+)?)\s*{unit})?" for unit in _SECONDS_PER_UNIT)
_PATTERN = rf"^(?=.*\d){_NUMBERS}\s*$"


def parse_duration(value: Any) -> float:
    """Return a duration in seconds, or raise ValueError."""
    seconds: Any = _sum_units(value) if isinstance(value, str) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise ValueError(
            "must be a positive duration, in seconds or as a string such as 90s, 5m or 2h30m,"
            f" got {value!r:.80}"
        )
    return float(seconds)


def _sum_units(text: str) -> float | None:
    """Return the seconds of a text such as `2h30m`; None if it is no duration."""
    match = re.match(_PATTERN, text)
    if match is None:
        return None
    counts = zip(match.groups(default="0"), _SECONDS_PER_UNIT.values(), strict=True)
    return sum(float(count) * seconds for count, seconds in counts)


class _Seconds:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(parse_duration)

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _PATTERN},
            ]
        }


Duration = Annotated[float, _Seconds()]
"""Seconds, written as a number or as 90s, 5m, 2h30m, 1d."""
