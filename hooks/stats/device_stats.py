"""Load of the machine and the GPU."""

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
    """Load of CPU, memory and GPU: utilization, power, temperature and clock.

    Each rank reads its own process and GPU, in all phases; nothing waits for the GPU. Records `cpu_percent` (of this
    process; 100 is one core), `system_cpu_percent`, `rss_bytes` and `system_memory_percent`; on CUDA, by NVML,
    `gpu_utilization_percent` and `gpu_memory_utilization_percent` (the share of time in which kernels ran, and memory
    was accessed), `gpu_power_w`, `gpu_temperature_c` and `gpu_sm_clock_mhz`, as far as the GPU supports them. Source:
    Lightning DeviceStatsMonitor, composer SystemMetricsMonitor, VISSL LogGpuStatsHook.
    """

    every: Iterations = Interval(50, "iterations")
    """Iterations between two readings."""

    def __post_init__(self) -> None:
        self._process = psutil.Process()
        self._gpu: _Gpu | None = None

    def on_start(self, state: State) -> None:
        # These measure from call to call.
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
    """A GPU as NVML sees it. An unsupported reading is tried once."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._readings: list[Callable[[], dict[str, float]]] = [
            lambda: _utilization(nvml.nvmlDeviceGetUtilizationRates(handle)),
            lambda: {"gpu_power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
            lambda: {"gpu_temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
            lambda: {"gpu_sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
        ]

    def read(self) -> dict[str, float]:
        columns: dict[str, float] = {}
        for reading in list(self._readings):
            try:
                columns |= reading()
            except self._nvml.NVMLError as error:
                logger.warning("device_stats skips a reading that NVML does not support: %s", error)
                self._readings.remove(reading)
        return columns

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def _utilization(rates: Any) -> dict[str, float]:
    return {"gpu_utilization_percent": rates.gpu, "gpu_memory_utilization_percent": rates.memory}


def _open(device: torch.device) -> _Gpu | None:
    """Find the GPU by its UUID, as torch and NVML may number GPUs differently; log a warning and return None on
    failure."""
    try:
        import pynvml
    except ImportError:
        logger.warning("device_stats records nothing of the GPU: install nvidia-ml-py (pip install 'hookyard[gpu]')")
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
