from __future__ import annotations

import pytest

from orchestrator.engines import preemption
from orchestrator.engines.preemption import PreemptionWatch


def test_attempt_on_other_nodes_is_not_warned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "draining_nodes", lambda: {"drained"})
    monkeypatch.setattr(preemption, "monotonic", lambda: 0.0)  # the next attempt begins before Ray is due to be asked
    nodes, lines = {"drained", "other"}, list[str]()
    watch = PreemptionWatch(lambda: nodes, lines.append)
    assert [watch.is_warned(), watch.is_warned()] == [True, True]
    nodes.remove("drained")
    assert not watch.is_warned()
    assert lines == ["node drained will be taken away; the ranks save and continue elsewhere"]
