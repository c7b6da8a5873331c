from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from hooks import EVENTS, Hook, Interval, Ranks, Setup, State, at_interval
from hooks.checkpointing.export import Export


def test_a_misspelt_event_is_refused_when_the_class_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Typo.on_stepp: there is no such event \(did you mean on_step\?\)"):

        class Typo(Hook):
            def on_stepp(self) -> None: ...


def test_a_field_that_hides_an_event_is_refused() -> None:
    with pytest.raises(TypeError, match="Hides: the field on_step has the name of an event"):

        class Hides(Hook):
            on_step: int = 5


@pytest.mark.parametrize("ranks", [Ranks.MASTER, Ranks.LOCAL_MASTER])
def test_a_collective_hook_must_run_on_all_ranks(ranks: Ranks) -> None:
    with pytest.raises(TypeError, match=f"Lonely is collective, so it must run on all ranks, not on {ranks}"):
        type("Lonely", (Hook,), {"collective": True, "ranks": ranks})


@dataclass
class Paced(Hook):
    """A hook that is called at an interval."""

    every: Interval = Interval(1, "steps")

    @at_interval("every")
    def on_step(self, state: State) -> None:
        pass


def test_interval_in_epochs_is_refused_if_it_never_calls_the_hook() -> None:
    reason = "on_step is never called at an interval of 2 epochs; set one in steps or iterations"
    assert Setup().find_reason_against(Paced(Interval(2))) == reason
    assert Setup().find_reason_against(Paced(Interval(2, "steps"))) == ""
    assert Setup().find_reason_against(Paced(Interval(0))) == ""
    assert Setup().find_reason_against(Export(every=Interval(2))) == "", "it also handles on_phase_end"


def test_hook_handles_only_the_events_that_it_overrides() -> None:
    @dataclass
    class Steps(Hook):
        priority: ClassVar[int] = 5

        def on_step(self, state: object) -> None: ...

    assert [event for event in EVENTS if Steps().handles(event)] == ["on_step"]
