"""The hooks that ship, by the names of their files, and the modules of all names of `hooks`.

A hook's module is imported when the hook is asked for, because every process of a run needs the
table, but only a few of the hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooks.hook import Hook

MODULE_OF_HOOK = {
    "Checkpoint": "hooks.checkpointing.checkpoint",
    "Export": "hooks.checkpointing.export",
    "Console": "hooks.logs.console",
    "JsonLines": "hooks.logs.json_lines",
    "MLflow": "hooks.logs.mlflow",
    "OutputCSV": "hooks.logs.output_csv",
    "ProgressBar": "hooks.logs.progress_bar",
    "TensorBoard": "hooks.logs.tensorboard",
    "WandB": "hooks.logs.wandb",
    "BYOL": "hooks.self_supervised.byol",
    "DeepCluster": "hooks.self_supervised.deepcluster",
    "DINO": "hooks.self_supervised.dino",
    "Distillation": "hooks.self_supervised.distillation",
    "IBOT": "hooks.self_supervised.ibot",
    "MoCo": "hooks.self_supervised.moco",
    "SwAV": "hooks.self_supervised.swav",
    "SwAVMomentum": "hooks.self_supervised.swav_momentum",
    "ActivationStats": "hooks.stats.activation_stats",
    "DeviceStats": "hooks.stats.device_stats",
    "LayerMemory": "hooks.stats.layer_memory",
    "MemorySnapshot": "hooks.stats.memory_snapshot",
    "MemoryStats": "hooks.stats.memory_stats",
    "ModelComplexity": "hooks.stats.model_complexity",
    "OptimizerStats": "hooks.stats.optimizer_stats",
    "PerfStats": "hooks.stats.perf_stats",
    "Profiler": "hooks.stats.profiler",
    "RowStats": "hooks.stats.row_stats",
    "RuntimeInfo": "hooks.stats.runtime_info",
    "Throughput": "hooks.stats.throughput",
    "AnomalyDetection": "hooks.training.anomaly_detection",
    "EarlyStopping": "hooks.training.early_stopping",
    "EMA": "hooks.training.ema",
    "EmptyCache": "hooks.training.empty_cache",
    "FreezeParameters": "hooks.training.freeze_parameters",
    "GarbageCollection": "hooks.training.garbage_collection",
    "GradientClip": "hooks.training.gradient_clip",
    "LossSpike": "hooks.training.loss_spike",
    "NanGuard": "hooks.training.nan_guard",
    "OutputMask": "hooks.training.output_mask",
    "ParamScheduler": "hooks.training.param_scheduler",
    "PreciseBatchNorm": "hooks.training.precise_batch_norm",
    "DistSamplerSeed": "hooks.training.sampler_seed",
    "SyncBuffers": "hooks.training.sync_buffers",
    "TimeLimit": "hooks.training.time_limit",
}
"""Module of each hook that ships, by the name of its class."""

MODULE_OF_OTHER = {
    "HookError": "hooks.errors",
    "EVENTS": "hooks.hook",
    "Hook": "hooks.hook",
    "Priority": "hooks.hook",
    "Ranks": "hooks.hook",
    "Interval": "hooks.interval",
    "Iterations": "hooks.interval",
    "Steps": "hooks.interval",
    "at_interval": "hooks.interval",
    "Plan": "hooks.event_plan",
    "Setup": "hooks.setup",
    "State": "hooks.state",
}
"""Module of each other name of `hooks`."""


class HookTable(Mapping[str, "type[Hook]"]):
    """The classes of hooks by the names of their files.

    Args:
        modules: Module of each class by the class's name.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules
        self.names = {cls: module.rpartition(".")[2] for cls, module in modules.items()}
        """Name of each hook by its class's name."""
        self._classes = {name: cls for cls, name in self.names.items()}

    def __getitem__(self, name: str) -> type[Hook]:
        cls = self._classes[name]
        hook: type[Hook] = getattr(import_module(self._modules[cls]), cls)
        return hook

    def __contains__(self, name: object) -> bool:
        """Return whether a hook has this name. Mapping's own method would import the hook."""
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def name_of(self, cls: type) -> str | None:
        """Return a class's name in the table; None for any other class."""
        is_shipped = self._modules.get(cls.__name__) == cls.__module__
        return self.names[cls.__name__] if is_shipped else None


HOOKS = HookTable(MODULE_OF_HOOK)
