"""The domains of a sweep: what one path of its space may be."""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, Self

from annotated_types import Len
from pydantic import ConfigDict, Field, ValidationError, WrapValidator, model_serializer, model_validator

from orchestrator.config.sections.base import Model
from orchestrator.config.text.bounds import MOST_LISTED


def _written(form: str) -> WrapValidator:
    """Says in which form values must be, where they are in another."""

    def checked(values: Any, check: Any) -> Any:
        try:
            return check(values)
        except ValidationError:
            raise ValueError(f"must be {form}") from None

    return WrapValidator(checked)


_ABSENT: Any = Field(default_factory=list)
_List = Annotated[list[Any], Len(1, MOST_LISTED), _written(f"a list of values, {MOST_LISTED:,} at most"), _ABSENT]
_Range = Annotated[list[float], Len(2, 2), _written("[low, high]"), _ABSENT]
_WholeRange = Annotated[list[int], Len(2, 2), _written("[low, high] in whole numbers"), _ABSENT]
_Steps = Annotated[list[int | float], Len(3, 3), _written("[low, high, step]"), _ABSENT]
_Bell = Annotated[list[float], Len(2, 2)] | Annotated[list[float], Len(4, 4)]

_QUANTIZED = ("quniform", "qloguniform")


class Domain(Model):
    """What a swept value may be: one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    choice: _List
    """One of a list; each of it where search is grid."""
    grid: _List
    """Each of a list."""
    fan_out: _List
    """Each of a list, with one training for all of them, of what observing hooks take: the rest is drawn once for
    all."""
    uniform: _Range
    """A number."""
    loguniform: _Range
    """A number, evenly over its logarithm."""
    quniform: _Steps
    """The nearest of low, low + step ...; whole where all three are."""
    qloguniform: _Steps
    """The same, evenly over its logarithm."""
    randint: _WholeRange
    """A whole number, high not included."""
    lograndint: _WholeRange
    """The same, evenly over its logarithm."""
    normal: Annotated[_Bell, _written("[mean, sd] or [mean, sd, low, high]"), _ABSENT]
    """A number without ends, or moved to the nearest end where it lies beyond."""

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"must have exactly one of {', '.join(type(self).model_fields)}")
        if self.is_list:
            return self
        low, high = self._bounds
        if self.kind == "normal" and self.values[1] <= 0:
            raise ValueError("must have an sd greater than 0")
        if not low < high:
            raise ValueError("must have low < high")
        if self.is_logarithmic and low <= 0:
            raise ValueError("must have low > 0")
        if self.kind in _QUANTIZED and self.values[2] <= 0:
            raise ValueError("must have a step greater than 0")
        return self

    @model_serializer
    def _as_written(self) -> dict[str, list[Any]]:
        return {self.kind: self.values}

    @property
    def kind(self) -> str:
        """Its name in a file."""
        (kind,) = self.model_fields_set
        return kind

    @property
    def values(self) -> list[Any]:
        """What a file says beside the name."""
        return list(getattr(self, self.kind))

    @property
    def is_list(self) -> bool:
        """Whether it is a list of values, or else a range of numbers."""
        return self.kind in ("choice", "grid", "fan_out")

    @property
    def is_logarithmic(self) -> bool:
        """Whether numbers are drawn evenly over their logarithm."""
        return self.kind in ("loguniform", "qloguniform", "lograndint")

    @property
    def is_whole(self) -> bool:
        """Whether the numbers of a range are whole."""
        return all(isinstance(value, int) for value in self.values)

    @property
    def ends(self) -> tuple[Any, Any]:
        """The smallest and largest value of a range; infinite for a normal distribution that is not clipped."""
        low, high = self._bounds
        return (low, high - 1) if self.kind in ("randint", "lograndint") else (low, high)

    @property
    def _bounds(self) -> list[Any]:
        if self.kind == "normal":
            return self.values[2:] or [-math.inf, math.inf]
        return self.values[:2]

    def candidates(self) -> list[Any]:
        """The values to try a domain by: each of a list, both ends of a range; a float's largest where it has no
        end."""
        if self.is_list:
            return self.values
        largest = sys.float_info.max
        low, high = (min(max(end, -largest), largest) for end in self.ends)
        return [low, high] if self.is_whole else [float(low), float(high)]

    def __contains__(self, value: Any) -> bool:
        """Whether a value is one of a list, or a number within the ends of a range."""
        if self.is_list:
            return value in self.values
        low, high = self.ends
        return type(value) in (int, float) and low <= value <= high

    def nearest(self, number: float) -> int | float:
        """The nearest value of a range: within its ends, on its steps counted from low, whole where the range is."""
        low, high = self.ends
        if self.kind in _QUANTIZED:
            step = self.values[2]
            steps = math.floor((high - low) / step + 1e-9)
            # Without the noise of adding up steps such as 0.01.
            number = float(f"{low + min(max(round((number - low) / step), 0), steps) * step:.12g}")
        number = min(max(number, low), high)
        return round(number) if self.is_whole else float(number)
