"""Statistics over windows, against NumPy on all that was recorded."""

from collections import defaultdict
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

from hooks import Hook, State
from hooks.logs.shared import readings
from hooks.logs.shared.statistic import Statistic
from hooks.logs.shared.window_statistics import Windows
from hooks.recent import RecentRows
from tests.hooks.phases import run_phase

GENERATOR = np.random.default_rng(0)
METHODS: dict[Any, Any] = {
    "mean": np.mean,
    "median": np.median,
    "min": np.min,
    "max": np.max,
    "current": itemgetter(-1),
}


class Looks(Hook):
    """Looks at its windows at chosen iterations of the phase, and as it ends."""

    def __init__(self, windows: Windows, *at: int) -> None:
        self.windows = windows
        self.at = at
        self.seen: list[dict[str, float]] = []

    def on_phase_start(self, state: State) -> None:
        self.windows.start_phase(state)

    def on_step(self, state: State) -> None:
        if state.phase_iteration in self.at:
            self.seen.append(self.windows.summarize(state.row))

    def on_phase_end(self, state: State) -> None:
        if self.windows.has_changed():
            self.seen.append(self.windows.summarize())


def _rows(column: str, values: Any) -> list[dict[str, float]]:
    return [{column: float(value)} for value in values]


def test_each_statistic_is_that_of_numpy_over_its_window() -> None:
    """Two epochs of 17 iterations, the first interrupted by a validation. A validation is an epoch
    of its own."""
    kinds = [
        kind
        for kind in product(METHODS, (7, "line", "epoch", "global"))
        if kind != ("median", "global")
    ]
    looks = Looks(
        Windows("line", {str(kind): Statistic("loss", *kind) for kind in kinds}), 3, 4, 15
    )
    state = State()
    expected: list[dict[str, float]] = []
    kept: dict[str, dict[Any, list[float]]] = {
        phase: defaultdict(list) for phase in ("train", "val")
    }
    for phase, count in (("train", 9), ("val", 5), ("train", 8), ("val", 20), ("train", 17)):
        values = GENERATOR.normal(size=count)
        start = state.phase_iteration
        windows = kept[phase]
        for window in ("line", "epoch", 7) if phase == "val" else ("epoch",) if start == 0 else ():
            windows[window].clear()
        for number, value in enumerate(values, 1 if phase == "val" else start + 1):
            for window in ("line", "epoch", "global", 7):
                windows[window] = [*windows[window], value][-7 if window == 7 else 0 :]
            if number in looks.at or value == values[-1]:
                expected.append({str(kind): METHODS[kind[0]](windows[kind[1]]) for kind in kinds})
                windows["line"].clear()
        run_phase(looks, state, phase, _rows("loss", values), length=17)
    for line in looks.seen:
        line.pop("loss", None)
    assert looks.seen == [pytest.approx(line) for line in expected]


def test_averaged_columns_and_last_values() -> None:
    """As MMEngine's mean_pattern has it; the clock's columns end in _s."""
    columns = (
        "loss",
        "loss_box",
        "grad_norm",
        "iteration_time",
        "data_wait_s",
        "lr",
        "rss_bytes",
        "accuracy",
    )
    rows = [dict.fromkeys(columns, value) for value in (1.0, 5.0)]
    looks = Looks(Windows(10), 2)
    run_phase(looks, State(), "train", rows)
    assert looks.seen == [{**dict.fromkeys(columns[:5], 3.0), **dict.fromkeys(columns[5:], 5.0)}]


@pytest.mark.parametrize("window", [2, "line", "epoch"])
def test_peak_of_memory_is_the_largest_since_the_last_line(window: Any) -> None:
    """As MMEngine, which resets CUDA's peak at each line. There is a reading in some rows only."""
    readings_of_peak: list[dict[str, float]] = [{}, {"peak": 5}, {"peak": 9}, {}, {"peak": 6}]
    rows = [
        {f"cuda_{name}_allocated_bytes": value for name, value in row.items()}
        for row in [*readings_of_peak, {"peak": 4}, {}, {}]
    ]
    looks = Looks(Windows(window), 5, 7)
    run_phase(looks, State(), "train", rows)
    peaks = [seen.get("cuda_peak_allocated_bytes") for seen in looks.seen]
    assert peaks[:2] == [9, 4]


class FewestValues(RecentRows):
    """Returns no more values than `most` asks for."""

    def columns(self, *args: Any, most: int | None = None, **named: Any) -> dict[str, list[Any]]:
        columns = super().columns(*args, **named)
        return {name: values[-most:] if most else values for name, values in columns.items()}


def test_peak_of_memory_looks_back_further_than_the_window() -> None:
    looks = Looks(Windows(2), 5)
    rows = _rows("cuda_peak_reserved_bytes", [1, 9, 1, 2, 1])
    run_phase(looks, State(recent=FewestValues()), "train", rows)
    assert looks.seen[0] == {"cuda_peak_reserved_bytes": 9}


def test_columns_added_when_a_row_is_closed_count_once() -> None:
    """step_s of the present iteration is not known yet: 1 s to 5 s are seen as 1+2, then 3+4+5,
    then none is left."""
    seconds = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    looks = Looks(
        Windows(
            "line",
            {
                "total": Statistic("step_s", "mean", "global"),
                "n": Statistic("loss", "mean", "global"),
            },
        ),
        3,
        5,
    )
    run_phase(
        looks,
        State(),
        "train",
        _rows("loss", [1, 2, 3, 4, 10]),
        close=lambda: {"step_s": next(seconds)},
    )
    assert [values["step_s"] for values in looks.seen] == [1.5, 3.5]
    assert looks.windows.summarize()["total"] == 3.0
    assert looks.windows.summarize()["n"] == 4.0


def test_columns_added_when_the_last_row_of_a_phase_is_closed_count_too() -> None:
    """A line at the last iteration has all of the row but its time, and none follows it."""
    seconds = iter([1.0, 9.0, 2.0, 4.0])
    statistics = {
        "mean": Statistic("step_s", "mean", "global"),
        "slowest": Statistic("step_s", "max", "global"),
    }
    looks = Looks(Windows("line", statistics), 2)
    state = State()
    for _ in range(2):
        rows = _rows("loss", [1, 1])
        run_phase(looks, state, "train", rows, close=lambda: {"step_s": next(seconds)})
    assert [values["mean"] for values in looks.seen] == [1.0, 4.0]
    assert [values["slowest"] for values in looks.seen] == [1.0, 9.0]
    assert looks.seen[1]["step_s"] == 5.5  # 9 s and 2 s since the line before


def test_summary_reads_all_tensors_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    kept = torch.Tensor.tolist
    monkeypatch.setattr(readings, "is_on_device", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(
        torch.Tensor, "tolist", lambda tensor: transfers.append(tensor.shape) or kept(tensor)
    )
    rows = [
        {"loss": torch.tensor(float(value)), "grad_norm": torch.tensor([1.0])} for value in range(5)
    ]
    looks = Looks(Windows(10), 5)
    run_phase(looks, State(), "train", rows)
    assert transfers == [(10,)]
    assert looks.seen == [{"loss": 2.0, "grad_norm": 1.0}]


@pytest.mark.parametrize("window", [7, "epoch", "global"])
def test_mean_has_the_same_bits_however_often_the_rows_are_read(window: Any) -> None:
    """A checkpoint reads the rows, and so does a resume from it: neither may round the sum in
    another place."""
    values = GENERATOR.normal(size=40)
    whole = Looks(Windows(window), 40)
    resumed = Looks(Windows(window), 40)
    run_phase(whole, State(), "train", _rows("loss", values))

    state = State()
    run_phase(resumed, state, "train", _rows("loss", values[:13]), length=40)
    kept = resumed.windows.state_dict()
    resumed.windows = Windows(window)
    resumed.windows.load_state_dict(kept)
    run_phase(resumed, state, "train", _rows("loss", values[13:]), length=40)
    assert resumed.seen[-1] == whole.seen[-1]


@pytest.mark.parametrize("method", ["mean", "median", "min", "max"])
@pytest.mark.parametrize("window", [3, "epoch"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_statistic_of_values_that_are_not_finite_is_that_of_numpy(method: Any, window: Any) -> None:
    odd = [
        [np.nan, 1, 2],
        [2, np.nan, 1],
        [2, 1, np.nan],
        [np.inf, -np.inf, 1],
        [1, np.inf, 2],
        [1e308, 1e308, 1e308],
    ]
    for values in odd:
        looks = Looks(Windows("line", {"it": Statistic("loss", method, window)}), 2)
        run_phase(looks, State(), "train", _rows("loss", values))
        assert looks.seen[-1]["it"] == pytest.approx(getattr(np, method)(values), nan_ok=True)


def test_the_median_of_the_whole_run_is_refused() -> None:
    with pytest.raises(ValueError, match="median of loss needs a window: write window: epoch"):
        Statistic("loss", "median", "global")
    with pytest.raises(ValueError, match="phase is a row's position, which has no statistics"):
        Statistic("phase")


def test_kept_values_are_bounded() -> None:
    windows = Windows(7, {"low": Statistic("loss", "min", "global")})
    run_phase(Looks(windows, *range(50, 500, 50)), State(), "train", _rows("loss", range(500)))
    kept = windows.state_dict()["windows"]["train"]
    assert len(kept["loss"]["kept"]) == 7
    assert kept["low"]["kept"] == []
