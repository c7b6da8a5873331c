"""Comparisons of a number with a limit, as a file has them: `>= 0.9`, `<= 8 GiB`, `<= 2h`."""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

from pydantic import TypeAdapter, ValidationError

from hooks.duration import parse_duration
from orchestrator.experiment.fields.size import Size
from orchestrator.units import is_number

_PATTERN = re.compile(r"\s*(<=|>=)\s*(.+?)\s*")
_EXAMPLES = "<= or >= and a number, such as '>= 0.9', '<= 8 GiB' or '<= 2h'"


@dataclass(frozen=True)
class Comparison:
    """A limit, and the side of it on which a number should be."""

    symbol: Literal["<=", ">="]
    limit: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a comparison; raises ValueError."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {_EXAMPLES}, got {text!r:.80}")
        symbol, limit = match.groups()
        return cls(cast(Literal["<=", ">="], symbol), _parse_limit(limit))

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


def _parse_limit(text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = _parse_unit(text)
    if not math.isfinite(limit):
        raise ValueError(f"{text!r} is not a finite number")
    return limit


def _parse_unit(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        pass
    try:
        return float(TypeAdapter(Size).validate_python(text))
    except ValidationError:
        raise ValueError(f"{text!r} is not a number, a size or a duration") from None
