from itertools import product

import numpy as np
import pytest

from hooks import Interval, State
from hooks.model.power_average import LARGEST_STD, combination, exponent, update_coefficient
from hooks.model.snapshots import Snapshots


def test_exponent_of_a_std_is_that_of_the_paper() -> None:
    """Karras et al. (2024), section 3.1: 5% and 10% are 16.97 and 6.94."""
    assert [round(exponent(std), 2) for std in (0.05, 0.10)] == [16.97, 6.94]
    for std in (0.01, 0.07, 0.2, LARGEST_STD):
        g = exponent(std)
        assert (g + 1) ** 0.5 * (g + 2) ** -1 * (g + 3) ** -0.5 == pytest.approx(std)
        x = (np.arange(100_000) + 0.5) / 100_000
        weights = x**g / (x**g).sum()
        assert np.sqrt((weights * (x - (weights * x).sum()) ** 2).sum()) == pytest.approx(
            std, rel=1e-6
        )
    assert exponent(LARGEST_STD) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("steps", [range(1, 13), [3, 6, 9, 10, 20]])
def test_updates_give_each_step_its_share_of_the_profile(steps: list[int]) -> None:
    g = exponent(0.1)
    left = np.zeros(len(steps))
    before = 0
    for place, step in enumerate(steps):
        taken = update_coefficient(before, step, g)
        left = left * (1 - taken)
        before = step
        left[place] += taken
    edges = np.array([0, *steps]) / steps[-1]
    np.testing.assert_allclose(left, np.diff(edges ** (g + 1)), rtol=1e-12)


@pytest.mark.parametrize("std", [0.04, 0.07, 0.2])
def test_combination_is_the_least_squares_solution(std: float) -> None:
    """The profiles as columns, at 200,000 places, as one dense problem."""
    stored = list(product((30, 70, 100), (0.05, 0.1)))
    wanted = (100, std)
    places = (np.arange(200_000) + 0.5) / 2_000
    columns = []
    for t, one in [*stored, wanted]:
        g = exponent(one)
        columns.append(np.where(places < t, (g + 1) * (places / t) ** g / t, 0))
    *basis, target = columns
    expected = np.linalg.lstsq(np.stack(basis, 1), target, rcond=None)[0]
    factors, error = combination(stored, wanted)
    np.testing.assert_allclose(factors, expected, rtol=2e-4, atol=1e-5)
    assert error == pytest.approx(
        np.linalg.norm(expected @ np.stack(basis) - target) / np.linalg.norm(target), rel=1e-3
    )


class Kept:
    """A store as far as snapshots know one."""

    def __init__(self) -> None:
        self.wanted: list[str] = []

    def retain(self, owner: str, names: list[str]) -> None:
        assert owner == "ema"
        self.wanted = list(names)

    def list_names(self) -> list[str]:
        return self.wanted


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
    state = State(phase="train", stepped=True, checkpoints=Kept())  # type: ignore[arg-type]
    kept = run_loop(Snapshots(Interval(10, "steps"), 4), state, range(1, 401))
    assert kept[40] == ["10", "20", "30", "40"]
    assert kept[50] == kept[40]
    assert kept[60] == [
        "20",
        "40",
        "60",
    ]  # one too many: every second goes, and is not made any more
    assert kept[80] == ["20", "40", "60", "80"]
    assert kept[400] == ["80", "160", "240", "320"]
    assert max(map(len, kept.values())) == 4


@pytest.mark.parametrize("cut", [45, 60, 80])
def test_resume_keeps_the_snapshots_of_an_uninterrupted_run(cut: int) -> None:
    """From an earlier checkpoint: what came after it is given up, and what was too many before it,
    deleted or not."""
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
    state.checkpoints.retain("ema", [*map(str, range(10, 101, 10))])  # type: ignore[union-attr]
    again = Snapshots(Interval(10, "steps"), 4)
    again.load_state_dict(record)
    again.restore(state, "ema", str(cut))
    assert state.checkpoints.list_names() == expected[cut]  # type: ignore[union-attr]
    assert run_loop(again, state, range(cut + 1, 201)) == {
        step: names for step, names in expected.items() if step > cut
    }
