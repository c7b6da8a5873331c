from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hooks import Hook
from hooks.parts.logs.tracker import Point, Tracker


def test_a_tracker_that_cannot_finish_is_refused_when_it_is_made() -> None:
    class Half(Tracker, Hook):
        def log(self, values: Mapping[str, float], at: Point) -> None: ...

        def note(self, name: str, value: str) -> None: ...

    half: Any = Half
    with pytest.raises(TypeError, match=r"abstract method '?finish"):
        half()
