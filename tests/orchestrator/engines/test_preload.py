"""The garbage collector in a trial's process, and in one that is not ours."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import ray

from orchestrator.engines import preload as warmup


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_driver_keeps_its_collector_as_it_is() -> None:
    importlib.reload(warmup)
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_an_actor_leaves_what_it_began_with_out_of_every_collection(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_actor_id=lambda: "a1"))
    here: list[object] = []
    here.append(here)
    if not enabled:
        gc.disable()
    try:
        importlib.reload(warmup)
        assert gc.isenabled() is enabled  # somebody who had switched it off meant that
        assert any(one is here for one in gc.get_objects()) is not enabled
    finally:
        gc.enable()
