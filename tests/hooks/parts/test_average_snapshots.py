from __future__ import annotations

import pytest

from hooks import Interval, State
from hooks.parts.average_snapshots import Snapshots


class Kept:
    """A store as far as snapshots know one."""

    def __init__(self) -> None:
        self.should_train: list[str] = []

    def retain(self, owner: str, names: list[str]) -> None:
        assert owner == "ema"
        self.should_train = list(names)

    def names(self) -> list[str]:
        return self.should_train


def run_loop(snapshots: Snapshots, state: State, steps: range) -> dict[int, list[str]]:
    """What is kept after each step."""
    kept = {}
    for state.step in steps:
        snapshots.request_if_due(state, "ema")
        if state.checkpoint_reasons:
            state.checkpoint_reasons.clear()
            snapshots.begin_save()
            snapshots.finish_save(state, "ema", str(state.step))
        kept[state.step] = list(state.checkpoints.names())  # type: ignore[union-attr]
    return kept


def test_snapshots_stay_evenly_spaced_in_runs_of_any_length() -> None:
    state = State(phase="train", stepped=True, checkpoints=Kept())  # type: ignore[arg-type]
    kept = run_loop(Snapshots(Interval(10, "steps"), 4), state, range(1, 401))
    assert kept[40] == ["10", "20", "30", "40"]
    assert kept[50] == kept[40]
    assert kept[60] == ["20", "40", "60"]  # one too many: every second goes, and is not made any more
    assert kept[80] == ["20", "40", "60", "80"]
    assert kept[400] == ["80", "160", "240", "320"]
    assert max(map(len, kept.values())) == 4


@pytest.mark.parametrize("cut", [45, 80])
def test_resume_keeps_the_snapshots_of_an_uninterrupted_run(cut: int) -> None:
    """From an earlier checkpoint: what came after it is given up."""
    whole = State(phase="train", stepped=True, checkpoints=Kept())  # type: ignore[arg-type]
    expected = run_loop(Snapshots(Interval(10, "steps"), 4), whole, range(1, 201))
    state = State(phase="train", stepped=True, checkpoints=Kept())  # type: ignore[arg-type]
    first = Snapshots(Interval(10, "steps"), 4)
    run_loop(first, state, range(1, cut))
    state.step = cut
    first.request_if_due(state, "ema")
    record = first.state_dict()  # as the checkpoint of this step has it
    first.begin_save()
    state.checkpoint_reasons.clear()
    run_loop(first, state, range(cut + 1, 100))
    state.checkpoints.retain("ema", [*expected[cut], "90", "100"])  # type: ignore[union-attr]
    again = Snapshots(Interval(10, "steps"), 4)
    again.restore(state, "ema", record, str(cut))
    assert state.checkpoints.names() == expected[cut]  # type: ignore[union-attr]
    assert run_loop(again, state, range(cut + 1, 201)) == {
        step: names for step, names in expected.items() if step > cut
    }
