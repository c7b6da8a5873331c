"""The domain of a parameter in a sweep: a list of values, or a range of numbers."""

import math
import sys
from typing import Annotated, Any, Self

from annotated_types import Len
from pydantic import ConfigDict, Field, model_serializer, model_validator

from orchestrator.errors import shorten_value
from orchestrator.experiment.fields.section import Model

MAX_VALUES = 1_000
"""Values of one list of a sweep's space, and points to try first."""

_ABSENT: Any = Field(default_factory=list)
_List = Annotated[list[Any], Len(1, MAX_VALUES), _ABSENT]
_Range = Annotated[list[float], Len(2, 2), _ABSENT]
_IntegerRange = Annotated[list[int], Len(2, 2), _ABSENT]
_Steps = Annotated[list[int | float], Len(3, 3), _ABSENT]
_Normal = Annotated[list[float], Len(2, 4), _ABSENT]

_QUANTIZED = ("quniform", "qloguniform")


class Domain(Model):
    """The values of a parameter: exactly one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    choice: _List
    """One item of a list, which may hold numbers, text, null and mappings; with `search: grid`, each
    of them. The values in a mapping are fixed, so it cannot contain another domain."""
    grid: _List
    """Every item of a list."""
    fan_out: _List
    """Every item of a list, for fields of observing hooks. These trials share one training run, and
    the values of all other parameters."""
    uniform: _Range
    """`[low, high]`: a number between low and high."""
    loguniform: _Range
    """`[low, high]`: a number, uniform on a logarithmic scale."""
    quniform: _Steps
    """`[low, high, step]`: one of low, low + step, low + 2 step and so on; an integer if all three
    are."""
    qloguniform: _Steps
    """`[low, high, step]`: the same values, uniform on a logarithmic scale."""
    randint: _IntegerRange
    """`[low, high]`: an integer from low to high - 1."""
    lograndint: _IntegerRange
    """`[low, high]`: an integer from low to high - 1, uniform on a logarithmic scale."""
    normal: _Normal
    """`[mean, sd]`: a normally distributed number, for fields without bounds; `[mean, sd, low,
    high]` clips it to low and high."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if len(self.model_fields_set) != 1:
            known = ", ".join(type(self).model_fields)
            written = {key: getattr(self, key) for key in sorted(self.model_fields_set)}
            raise ValueError(f"must have exactly one of {known}, got {shorten_value(written)}")
        if self.is_list:
            return self
        if len(self.values) == 3 and self.kind == "normal":
            raise ValueError(f"must be [mean, sd] or [mean, sd, low, high], got {self}")
        low, high = self._bounds
        if self.kind == "normal" and self.values[1] <= 0:
            raise ValueError(f"sd must be greater than 0, got {self}")
        if not low < high:
            raise ValueError(f"low must be below high, got {self}")
        if self.is_logarithmic and low <= 0:
            raise ValueError(f"low must be greater than 0, got {self}")
        if self.kind in _QUANTIZED and self.values[2] <= 0:
            raise ValueError(f"step must be greater than 0, got {self}")
        return self

    def __str__(self) -> str:
        return f"{self.kind}: {self.values}"

    @model_serializer
    def _serialize(self) -> dict[str, list[Any]]:
        return {self.kind: self.values}

    @property
    def kind(self) -> str:
        """Name of the domain in a file."""
        (kind,) = self.model_fields_set
        return kind

    @property
    def values(self) -> list[Any]:
        """Values beside the name in a file."""
        return list(getattr(self, self.kind))

    @property
    def is_list(self) -> bool:
        """True for a list of values, False for a range of numbers."""
        return self.kind in ("choice", "grid", "fan_out")

    @property
    def is_logarithmic(self) -> bool:
        """True if numbers are sampled uniformly in their logarithm."""
        return self.kind in ("loguniform", "qloguniform", "lograndint")

    @property
    def is_integer(self) -> bool:
        """True if the numbers of a range are integers."""
        return all(isinstance(value, int) for value in self.values)

    @property
    def step(self) -> int | float | None:
        """Distance between the values of a range; None if it has every number."""
        if self.kind in ("randint", "lograndint"):
            return 1
        return self.values[2] if self.kind in _QUANTIZED else None

    @property
    def ends(self) -> tuple[Any, Any]:
        """Smallest and largest value of a range; infinite for an unbounded normal distribution."""
        low, high = self._bounds
        if self.kind in ("randint", "lograndint"):
            return low, high - 1
        if self.kind in _QUANTIZED:
            n_steps = math.floor((high - low) / self.values[2] + 1e-9)
            return low, self._round(low + n_steps * self.values[2])
        return low, high

    @property
    def _bounds(self) -> list[Any]:
        if self.kind == "normal":
            return self.values[2:] or [-math.inf, math.inf]
        return self.values[:2]

    def list_candidates(self) -> list[Any]:
        """Return the values to check: each of a list, or the first and the last of a range.

        An end that is infinite is the largest float.
        """
        if self.is_list:
            return self.values
        largest = sys.float_info.max
        return [self.find_nearest(min(max(end, -largest), largest)) for end in self.ends]

    def __contains__(self, value: Any) -> bool:
        if self.is_list:
            return value in self.values
        if type(value) not in (int, float):
            return False
        low, high = self.ends
        return bool(low <= value <= high and self.find_nearest(value) == value)

    def find_nearest(self, number: float) -> int | float:
        """Return the nearest value of a range, on its steps; an integer if its ends are."""
        low, high = self.ends
        if self.kind in _QUANTIZED:
            step = self.values[2]
            number = self._round(low + round((number - low) / step) * step)
        number = min(max(number, low), high)
        return round(number) if self.is_integer else float(number)

    def _round(self, number: int | float) -> int | float:
        """Remove the rounding errors of steps such as 0.01."""
        return number if self.is_integer else float(f"{number:.12g}")
