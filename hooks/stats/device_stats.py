"""How busy the machine and the GPU are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, paced_by
from hooks.parts.cleanup import Cleanup
from hooks.state import State

logger = logging.getLogger("hookyard")


@dataclass
class DeviceStats(Cleanup, Hook):
    """Records how busy processor and memory are, and utilisation, power, temperature and clock of the GPU.

    Every rank reads its own process and its own GPU, in every phase; no communication, and nothing waits for the GPU.
    Records `cpu_percent` (of this process; 100 is one core) and `system_cpu_percent` since the reading before,
    `rss_bytes` and `system_memory_percent`; on CUDA, by NVML, `gpu_utilization_percent` and
    `gpu_memory_utilization_percent` (the share of time that kernels ran, and that memory was read or written),
    `gpu_power_w`, `gpu_temperature_c` and `gpu_sm_clock_mhz`. What a GPU does not tell is left out; without NVML
    there is a warning at start. Memory that torch holds is memory_stats' part.
    Source: Lightning DeviceStatsMonitor, composer SystemMetricsMonitor, VISSL LogGpuStatsHook.
    """

    every: Iterations = Interval(50, "iterations")
    """Iterations between two readings."""

    def __post_init__(self) -> None:
        self._process = psutil.Process()
        self._gpu: _Gpu | None = None

    def on_start(self, state: State) -> None:
        # The first call of each says nothing: they measure from one call to the next.
        self._process.cpu_percent()
        psutil.cpu_percent()
        if state.device.type == "cuda":
            self._gpu = _open(state.device)

    @paced_by("every")
    def on_step(self, state: State) -> None:
        with self._process.oneshot():
            state.record(cpu_percent=self._process.cpu_percent(), rss_bytes=self._process.memory_info().rss)
        state.record(system_cpu_percent=psutil.cpu_percent(), system_memory_percent=psutil.virtual_memory().percent)
        if self._gpu is not None:
            state.record(**self._gpu.read())

    def close(self) -> None:
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None


class _Gpu:
    """One GPU as NVML sees it. Each reading that it does not support is asked for once."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._readings: list[Callable[[], dict[str, float]]] = [
            lambda: _utilization(nvml.nvmlDeviceGetUtilizationRates(handle)),
            lambda: {"gpu_power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
            lambda: {"gpu_temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
            lambda: {"gpu_sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
        ]

    def read(self) -> dict[str, float]:
        """The columns there are."""
        columns: dict[str, float] = {}
        for reading in list(self._readings):
            try:
                columns |= reading()
            except self._nvml.NVMLError as error:
                logger.warning("device_stats reads on without what NVML refuses: %s", error)
                self._readings.remove(reading)
        return columns

    def close(self) -> None:
        """Lets NVML go."""
        self._nvml.nvmlShutdown()


def _utilization(rates: Any) -> dict[str, float]:
    return {"gpu_utilization_percent": rates.gpu, "gpu_memory_utilization_percent": rates.memory}


def _open(device: torch.device) -> _Gpu | None:
    """The GPU by its UUID, as torch and NVML number GPUs differently (CUDA_VISIBLE_DEVICES); None with a warning."""
    try:
        import pynvml
    except ImportError:
        logger.warning("device_stats records nothing of the GPU: that needs nvidia-ml-py (pip install 'hookyard[gpu]')")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.warning("device_stats records nothing of the GPU: NVML does not start: %s", error)
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return _Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError as error:
        logger.warning("device_stats records nothing of the GPU: NVML does not know %s: %s", uuid, error)
        pynvml.nvmlShutdown()
        return None
