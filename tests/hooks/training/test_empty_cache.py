from typing import Any

import pytest
import torch

from hooks import Hook, Plan, State
from hooks.training.empty_cache import EmptyCache
from tests.hooks.phases import run_phase


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the cache was emptied, as far as `Marks` said."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("emptied"))
    return found


def phases(hook: Hook, device: str, places: list[str]) -> None:
    state = State(device=torch.device(device))
    for phase in ("train", "val", "test"):
        places.append(phase)
        run_phase(hook, state, phase, [{}] * 4, work=lambda: places.append("iteration"))


@pytest.mark.parametrize(
    ("fields", "of_a_phase"),
    [
        ({}, "iiiie"),
        ({"before_epoch": True, "after_epoch": False}, "eiiii"),
        ({"after_epoch": False, "after_iter": True}, "ieieieie"),
        ({"after_epoch": False, "after_iter": True, "every": 2}, "iieiie"),
        ({"before_epoch": True, "after_iter": True, "every": 3}, "eiiieie"),
        ({"after_epoch": False}, "iiii"),
    ],
    ids=str,
)
def test_cache_is_emptied_in_every_phase_at_the_configured_events(
    fields: dict[str, Any], of_a_phase: str, places: list[str]
) -> None:
    phases(EmptyCache(**fields), "cuda", places)
    letters = {"iteration": "i", "emptied": "e"}
    assert "".join(letters.get(place, f" {place} ") for place in places) == "".join(
        f" {phase} {of_a_phase}" for phase in ("train", "val", "test")
    )


def test_does_nothing_off_cuda(places: list[str]) -> None:
    phases(EmptyCache(before_epoch=True, after_iter=True), "cpu", places)
    assert "emptied" not in places


def test_a_subclass_gets_its_own_events() -> None:
    class Counts(EmptyCache):
        def on_batch(self, state: State) -> None: ...

    assert Counts().handles("on_batch")
    assert not Counts().handles("on_step")


def test_runs_after_hooks_that_free_memory() -> None:
    class LetsGo(Hook):
        priority = 90

        def on_phase_end(self, state: State) -> None: ...

    assert Plan({"empty": EmptyCache(), "other": LetsGo()}).names_by_event()["on_phase_end"] == [
        "other",
        "empty",
    ]
