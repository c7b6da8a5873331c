"""The machine against psutil; the GPU against an NVML in miniature."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from hooks import Hook, State
from hooks.interval import Interval
from hooks.stats.device_stats import DeviceStats
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, Rows, experiment

GPU_COLUMNS = {
    "gpu_utilization_percent": 87,
    "gpu_memory_utilization_percent": 31,
    "gpu_power_w": 251.5,
    "gpu_temperature_c": 64,
    "gpu_sm_clock_mhz": 1410,
}


class NvmlError(Exception):
    """What NVML raises."""


class Nvml(ModuleType):
    """NVML with two GPUs, of which torch sees the second as its first."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1
    NVMLError = NvmlError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.refused: set[str] = set()
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self._called("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        self._called("handle")
        return {"GPU-first": 0, "GPU-second": 1}[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._called("utilization")
        return [SimpleNamespace(gpu=1, memory=2), SimpleNamespace(gpu=87, memory=31)][handle]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._called("power")
        return [1_000, 251_500][handle]

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        self._called("temperature")
        return [20, 64][handle]

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        assert clock == self.NVML_CLOCK_SM
        self._called("clock")
        return [100, 1410][handle]

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if what in self.refused:
            raise NvmlError(f"{what}: Not Supported")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="second"))
    return nvml


def gpu_columns(hook: DeviceStats, state: State) -> dict[str, Any]:
    state.row = {}
    hook.on_step(state)
    return {name: value for name, value in state.row.items() if name.startswith("gpu")}


def started() -> tuple[DeviceStats, State]:
    hook, state = DeviceStats(), State(device=torch.device("cuda"))
    hook.on_start(state)
    return hook, state


def test_the_machine_is_what_psutil_says() -> None:
    hook, state = DeviceStats(), State()
    hook.on_start(state)
    hook.on_step(state)
    assert set(state.row) == {"cpu_percent", "rss_bytes", "system_cpu_percent", "system_memory_percent"}
    assert state.row["rss_bytes"] == pytest.approx(psutil.Process().memory_info().rss, abs=16 * 2**20)
    assert state.row["system_memory_percent"] == pytest.approx(psutil.virtual_memory().percent, abs=10)


def test_nothing_waits_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil sleeps where it is given an interval; and its first answer, 0, must be gone before the first row."""
    asked: list[tuple[str, Any]] = []

    def answer(what: str) -> Any:
        def cpu_percent(*arguments: Any, interval: float | None = None) -> float:
            asked.append((what, interval))
            return 0.0 if len(asked) <= 2 else {"process": 150.0, "system": 40.0}[what]

        return cpu_percent

    monkeypatch.setattr(psutil.Process, "cpu_percent", answer("process"))
    monkeypatch.setattr(psutil, "cpu_percent", answer("system"))
    hook, state = DeviceStats(), State()
    hook.on_start(state)
    hook.on_step(state)
    assert asked == [("process", None), ("system", None)] * 2
    assert (state.row["cpu_percent"], state.row["system_cpu_percent"]) == (150.0, 40.0)


def test_it_reads_every_so_many_iterations_of_each_phase() -> None:
    hooks: dict[str, Hook] = {"device": DeviceStats(every=Interval(3, "iterations"))}
    rows = Rows()
    list(Loop(Points(train=52, val=32), experiment(epochs=1), hooks, RunContext(recorder=rows)).run())
    assert [one["phase"] for one in rows.rows if "cpu_percent" in one] == ["train", "train", "val"]
    assert [one["iteration"] for one in rows.rows if "cpu_percent" in one] == [3, 6, 3]


def test_the_gpu_is_torchs_own_and_its_units_are_as_named(nvml: Nvml) -> None:
    """By its UUID: an index would read another GPU where CUDA_VISIBLE_DEVICES hides some."""
    hook, state = started()
    assert gpu_columns(hook, state) == GPU_COLUMNS


@pytest.mark.parametrize(
    "finish", [lambda hook: hook.on_end(State()), lambda hook: hook.on_exception(State(), ValueError())]
)
def test_nvml_is_let_go(nvml: Nvml, finish: Any) -> None:
    hook, _ = started()
    assert nvml.open == 1
    finish(hook)
    finish(hook)
    assert nvml.open == 0


def test_what_a_gpu_does_not_tell_is_asked_once(nvml: Nvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.refused = {"power"}
    hook, state = started()
    for _ in range(3):
        assert gpu_columns(hook, state) == {name: value for name, value in GPU_COLUMNS.items() if name != "gpu_power_w"}
    assert nvml.calls.count("power") == 1
    assert "power: Not Supported" in caplog.text


@pytest.mark.parametrize(
    ("refused", "said"), [("init", "NVML does not start: init"), ("handle", "NVML does not know GPU-second: handle")]
)
def test_a_run_goes_on_without_nvml(nvml: Nvml, refused: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    nvml.refused = {refused}
    hook, state = started()
    assert gpu_columns(hook, state) == {}
    assert state.row["rss_bytes"] > 0
    assert said in caplog.text
    assert nvml.open == 0


def test_without_the_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with caplog.at_level(logging.WARNING, logger="hookyard"):
        hook, state = started()
    assert gpu_columns(hook, state) == {}
    assert "hookyard[gpu]" in caplog.text


def test_the_real_package_has_what_is_called() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in dir(Nvml):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(pynvml, name), name
