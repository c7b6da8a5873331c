"""Comparisons of a number with a limit, as a file has them: `>= 0.9`, `<= 8 GiB`, `<= 2h`."""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from pydantic import TypeAdapter, ValidationError

from hooks.duration import parse_duration
from orchestrator.experiment.fields.size import Size
from orchestrator.units import get_unit, is_number

_PATTERN = re.compile(r"\s*(<=|>=)\s*(.+?)\s*")
_KINDS = {"s": "a duration", "bytes": "a size"}
"""What a limit with a unit is."""
_FORMS = {"s": "a number or a duration such as 2h", "bytes": "a number or a size such as 8 GiB"}
"""What the limit of a column with a unit must be."""
_EXAMPLES = "<= or >= and a number, such as '>= 0.9', '<= 8 GiB' or '<= 2h'"


@dataclass(frozen=True)
class Comparison:
    """A limit, and the side of it on which a number should be."""

    symbol: Literal["<=", ">="]
    limit: float
    unit: str = ""
    """Unit with which the limit is written: `s`, `bytes` or none."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a comparison; raises ValueError."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {_EXAMPLES}, got {text!r:.80}")
        symbol, limit = match.groups()
        return cls(cast(Literal["<=", ">="], symbol), *_parse_limit(limit))

    @classmethod
    def parse_for(cls, column: str, text: str) -> Self:
        """Parse a comparison of a column, which may have a unit; raises ValueError, also for a
        limit of another unit."""
        comparison = cls.parse(text)
        unit = get_unit(column)
        if unit and comparison.unit not in ("", unit):
            form = _FORMS.get(unit, "a number")
            raise ValueError(f"must be {form}, got {_KINDS[comparison.unit]}: {text!r}")
        return comparison

    def measure_excess(self, value: Any) -> float:
        """Return by how much a value is beyond the limit: 0 or less if it is within, and infinity
        if it is not a number."""
        if not is_number(value):
            return math.inf
        excess = float(value) - self.limit
        return excess if self.symbol == "<=" else -excess

    def holds(self, value: Any) -> bool:
        """Return whether a value is a number within the limit."""
        return self.measure_excess(value) <= 0


def _parse_limit(text: str) -> tuple[float, str]:
    """Return a limit and its unit, if it has one; raises ValueError."""
    unit = ""
    try:
        limit = float(text)
    except ValueError:
        limit, unit = _parse_with_unit(text)
    if not math.isfinite(limit):
        raise ValueError(f"{text!r} is not a finite number")
    return limit, unit


def _parse_with_unit(text: str) -> tuple[float, str]:
    try:
        return parse_duration(text), "s"
    except ValueError:
        pass
    try:
        return float(TypeAdapter(Size).validate_python(text)), "bytes"
    except ValidationError:
        raise ValueError(f"{text!r} is not a number, a size or a duration") from None
