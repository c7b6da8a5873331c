from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hooks import Hook, State
from hooks.parts.layer_monitor import LayerMonitor


def test_a_monitor_without_a_way_to_read_is_refused_when_it_is_made() -> None:
    class Half(LayerMonitor, Hook):
        folder = "half"

        def watch(self, name: str, layer: nn.Module, state: State) -> None: ...

    half: Any = Half
    with pytest.raises(TypeError, match=r"abstract method '?read"):
        half()
