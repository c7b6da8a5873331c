"""The outcome of a random case."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """Exit codes of a case's processes, and its difference from the reference."""

    case: Any
    exit_codes: list[int] = field(default_factory=list)
    accidents: list[str] = field(default_factory=list)
    """Accidents and damages that happened."""
    problem: str = ""
    """First difference from the reference; empty if there is none."""
