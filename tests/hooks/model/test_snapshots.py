"""Snapshots: which checkpoints are kept, also after a resume."""

import pytest

from hooks import Interval, State
from hooks.model.snapshots import Snapshots


class Kept:
    """A store as far as snapshots know one."""

    def __init__(self) -> None:
        self.wanted: list[str] = []

    def retain(self, owner: str, names: list[str]) -> None:
        assert owner == "ema"
        self.wanted = list(names)

    def list_names(self) -> list[str]:
        return self.wanted


def new_state() -> State:
    return State(phase="train", stepped=True, checkpoints=Kept())  # type: ignore[arg-type]


def run_loop(snapshots: Snapshots, state: State, steps: range) -> dict[int, list[str]]:
    """What is kept after each step."""
    kept = {}
    for state.step in steps:
        snapshots.request_if_due(state, "ema")
        if state.checkpoint_reasons:
            state.checkpoint_reasons.clear()
            snapshots.begin_save()
            snapshots.finish_save(state, "ema", str(state.step))
        kept[state.step] = list(state.checkpoints.list_names())  # type: ignore[union-attr]
    return kept


def test_snapshots_stay_evenly_spaced_in_runs_of_any_length() -> None:
    state = new_state()
    kept = run_loop(Snapshots(Interval(10, "steps"), 4), state, range(1, 401))
    assert kept[40] == ["10", "20", "30", "40"]
    assert kept[50] == kept[40]
    # One too many: every second goes, and is not made any more.
    assert kept[60] == ["20", "40", "60"]
    assert kept[80] == ["20", "40", "60", "80"]
    assert kept[400] == ["80", "160", "240", "320"]
    assert max(map(len, kept.values())) == 4


@pytest.mark.parametrize("cut", [45, 60, 80])
def test_resume_keeps_the_snapshots_of_an_uninterrupted_run(cut: int) -> None:
    """From an earlier checkpoint: what came after it is given up, and what was too many before it,
    deleted or not."""
    whole = new_state()
    expected = run_loop(Snapshots(Interval(10, "steps"), 4), whole, range(1, 201))
    state = new_state()
    first = Snapshots(Interval(10, "steps"), 4)
    run_loop(first, state, range(1, cut))
    state.step = cut
    first.request_if_due(state, "ema")
    # As the checkpoint of this step has it.
    record = first.state_dict()
    first.begin_save()
    state.checkpoint_reasons.clear()
    run_loop(first, state, range(cut + 1, 100))
    state.checkpoints.retain("ema", list(map(str, range(10, 101, 10))))  # type: ignore[union-attr]
    again = Snapshots(Interval(10, "steps"), 4)
    again.load_state_dict(record)
    again.restore(state, "ema", str(cut))
    assert state.checkpoints.list_names() == expected[cut]  # type: ignore[union-attr]
    continued = run_loop(again, state, range(cut + 1, 201))
    assert continued == {step: expected[step] for step in range(cut + 1, 201)}
