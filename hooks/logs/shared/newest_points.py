"""The newest points of curves, in checkpoints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class NewestPoints:
    """The points at the newest value of the axis, which a resumed run draws again."""

    x: int = 0
    points: list[bytes] = field(default_factory=list)

    def add(self, x: int, point: bytes) -> None:
        """Add a point; the first at a new value of the axis replaces those at the previous one."""
        if x != self.x:
            self.x = x
            self.points.clear()
        self.points.append(point)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]
        self.points = list(state["points"])
