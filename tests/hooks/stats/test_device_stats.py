"""The machine against psutil; the GPU against torch, whose readings are replaced."""

import logging
from typing import Any

import psutil
import pytest
import torch

from hooks import State
from hooks.stats.device_stats import DeviceStats

GPU = {
    "utilization": 87,
    "memory_usage": 31,
    "power_draw": 251_500,
    "temperature": 64,
    "clock_rate": 1410,
}
"""What torch says of the GPU, in its units."""
COLUMNS = {
    "gpu_utilization_percent": 87,
    "gpu_memory_utilization_percent": 31,
    "gpu_power_w": 251.5,
    "gpu_temperature_c": 64,
    "gpu_sm_clock_mhz": 1410,
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Values that torch gives for its second GPU, or errors that it raises."""
    values: dict[str, Any] = dict(GPU)

    def reading(name: str) -> Any:
        assert callable(getattr(torch.cuda, name))

        def read(device: torch.device) -> int:
            assert device == torch.device("cuda", 1)
            if isinstance(values[name], Exception):
                raise values[name]
            return int(values[name])

        return read

    for name in GPU:
        monkeypatch.setattr(torch.cuda, name, reading(name))
    return values


def gpu_columns(hook: DeviceStats, state: State) -> dict[str, Any]:
    state.row = {}
    hook.on_step(state)
    return {name: value for name, value in state.row.items() if name.startswith("gpu")}


def started() -> tuple[DeviceStats, State]:
    hook = DeviceStats()
    state = State(device=torch.device("cuda", 1))
    hook.on_start(state)
    return hook, state


def test_machine_readings_are_those_of_psutil() -> None:
    hook = DeviceStats()
    state = State()
    hook.on_start(state)
    hook.on_step(state)
    assert set(state.row) == {
        "cpu_percent",
        "rss_bytes",
        "system_cpu_percent",
        "system_memory_percent",
    }
    assert state.row["rss_bytes"] == pytest.approx(
        psutil.Process().memory_info().rss, abs=16 * 2**20
    )
    assert state.row["system_memory_percent"] == pytest.approx(
        psutil.virtual_memory().percent, abs=10
    )


def test_gpu_readings_are_those_of_torch_in_the_named_units(gpu: dict[str, Any]) -> None:
    assert gpu_columns(*started()) == COLUMNS


@pytest.mark.parametrize(
    ("error", "missing", "said"),
    [
        (
            RuntimeError("power: Not Supported"),
            {"gpu_power_w"},
            "leaves out gpu_power_w: power: Not Supported",
        ),
        (ModuleNotFoundError("pynvml"), COLUMNS.keys(), "pip install 'hookyard[gpu]'"),
    ],
)
def test_run_continues_without_readings_that_a_gpu_lacks(
    gpu: dict[str, Any], error: Exception, missing: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failing reading is tried once."""
    gpu |= {"power_draw": error} if isinstance(error, RuntimeError) else dict.fromkeys(GPU, error)
    hook, state = started()
    with caplog.at_level(logging.WARNING, logger="hookyard"):
        for _ in range(3):
            assert gpu_columns(hook, state) == {
                name: value for name, value in COLUMNS.items() if name not in missing
            }
    assert [said in record.getMessage() for record in caplog.records] == [True]
    assert state.row["rss_bytes"] > 0
