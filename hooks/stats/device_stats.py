"""Load of the machine and the GPU."""

import logging
from dataclasses import dataclass

import psutil
import torch

from hooks.hook import Hook
from hooks.interval import Interval, Iterations, at_interval
from hooks.state import State

logger = logging.getLogger("hookyard")

_GPU_READINGS = {
    "gpu_utilization_percent": ("utilization", 1),
    "gpu_memory_utilization_percent": ("memory_usage", 1),
    "gpu_power_w": ("power_draw", 1000),
    "gpu_temperature_c": ("temperature", 1),
    "gpu_sm_clock_mhz": ("clock_rate", 1),
}
"""Function of torch.cuda for each column, and the divisor of its value."""


@dataclass
class DeviceStats(Hook):
    """Measure the load of CPU, memory and GPU: utilization, power, temperature and clock.

    Each rank reads its own process and GPU, in all phases; nothing waits for the GPU. The columns
    of a GPU come from NVML, as far as the GPU supports them, and need the extra `gpu`.

    Columns:
        * `cpu_percent`: CPU use of the process; 100 is one core.
        * `system_cpu_percent`, `system_memory_percent`: CPU use and memory use of the machine.
        * `rss_bytes`: Resident memory of the process.
        * `gpu_utilization_percent`: Share of time in which kernels ran.
        * `gpu_memory_utilization_percent`: Share of time in which memory was accessed.
        * `gpu_power_w`: Power in watts.
        * `gpu_temperature_c`: Temperature in degrees Celsius.
        * `gpu_sm_clock_mhz`: Clock in megahertz.

    Source: Lightning DeviceStatsMonitor, composer SystemMetricsMonitor, VISSL LogGpuStatsHook.
    """

    every: Iterations = Interval(50, "iterations")
    """Iterations between readings."""

    def __post_init__(self) -> None:
        self._process = psutil.Process()
        self._gpu_readings: dict[str, tuple[str, int]] = {}

    def on_start(self, state: State) -> None:
        # These measure from call to call.
        self._process.cpu_percent()
        psutil.cpu_percent()
        self._gpu_readings = dict(_GPU_READINGS) if state.device.type == "cuda" else {}

    @at_interval("every")
    def on_step(self, state: State) -> None:
        with self._process.oneshot():
            state.record(
                cpu_percent=self._process.cpu_percent(), rss_bytes=self._process.memory_info().rss
            )
        state.record(
            system_cpu_percent=psutil.cpu_percent(),
            system_memory_percent=psutil.virtual_memory().percent,
        )
        for column, (function, divisor) in list(self._gpu_readings.items()):
            try:
                state.record(**{column: getattr(torch.cuda, function)(state.device) / divisor})
            except ModuleNotFoundError:
                logger.warning(
                    "device_stats records nothing of the GPU: pip install 'hookyard[gpu]'"
                )
                self._gpu_readings.clear()
                return
            except Exception as error:  # NVML's own errors, and those of a driver
                logger.warning("device_stats leaves out %s: %s", column, error)
                del self._gpu_readings[column]
