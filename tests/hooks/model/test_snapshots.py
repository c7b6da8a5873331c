"""Snapshots: which checkpoints are kept, also after a resume."""

import pytest

from hooks import Interval, State
from hooks.errors import SettingError
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


def test_resume_with_another_interval_is_refused() -> None:
    """The number of a snapshot counts intervals: 2,560 steps are 256 of 10 steps. After 1,000 more,
    number 3 of 1,000 steps would look like one too many, and be owned by nobody."""
    state = new_state()
    first = Snapshots(Interval(10, "steps"), 32)
    run_loop(first, state, range(1, 2561))
    with pytest.raises(
        SettingError, match=r"snapshots: must be 10 steps, .* got 1000 steps; set it back, or set 0"
    ):
        Snapshots(Interval(1000, "steps"), 32).load_state_dict(first.state_dict())
    with pytest.raises(SettingError, match=r"must be 10 steps, .* got 10 epochs"):
        Snapshots(Interval(10), 32).load_state_dict(first.state_dict())


def test_resume_without_further_snapshots_keeps_them_and_their_interval() -> None:
    state = new_state()
    first = Snapshots(Interval(10, "steps"), 4)
    run_loop(first, state, range(1, 41))
    without = Snapshots(Interval(0), 4)
    without.load_state_dict(first.state_dict())
    without.restore(state, "ema", "40")
    kept = ["10", "20", "30", "40"]
    assert run_loop(without, state, range(41, 80))[79] == kept
    again = Snapshots(Interval(10, "steps"), 4)
    again.load_state_dict(without.state_dict())
    again.restore(state, "ema", "79")
    assert run_loop(again, state, range(80, 81))[80] == ["20", "40", "80"]


def test_interval_may_change_before_the_first_snapshot() -> None:
    first = Snapshots(Interval(1000, "steps"), 4)
    state = new_state()
    run_loop(first, state, range(1, 6))
    later = Snapshots(Interval(2, "steps"), 4)
    later.load_state_dict(first.state_dict())
    assert run_loop(later, state, range(6, 9))[8] == ["6", "8"]
