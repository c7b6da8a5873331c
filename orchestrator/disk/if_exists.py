"""The choice of what a new run does if its name is taken. Imports nothing, for the command line."""

from typing import Literal

IfExists = Literal["error", "number", "replace"]
"""It is refused, takes a numbered name, or replaces the other run."""
