"""The budget of a hook: `1%`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

PERCENTAGE = r"^\s*(\d{1,3}(\.\d{1,6})?)\s*%\s*$"


@dataclass(frozen=True)
class Budget:
    """The share of the time that a hook may take, in place of its pace: `1%`."""

    share: float

    @classmethod
    def parse(cls, value: Any) -> Budget:
        """Reads `"1%"`; raises ValueError for anything else, and for what is not above 0 % and at most 100 %."""
        match = re.match(PERCENTAGE, value) if isinstance(value, str) else None
        if match and 0 < float(match[1]) <= 100:
            return cls(float(match[1]) / 100)
        hint = f"{100 * value:g}%" if type(value) is float and 0 < value < 1 else "1%"
        raise ValueError(f"must be a share of the time, above 0% and at most 100%, such as '{hint}', got {value!r:.80}")

    def __str__(self) -> str:
        return f"{100 * self.share:.8g}%"
