"""HOOKS: the one table of the hooks that ship, name to class; and what else `hooks` offers."""

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.checkpointing.export import Export
from hooks.hook import EVENTS, Hook, Priority, Ranks
from hooks.logs.console import Console
from hooks.logs.json_lines import JsonLines
from hooks.logs.mlflow import MLflow
from hooks.logs.output_csv import OutputCSV
from hooks.logs.progress_bar import ProgressBar
from hooks.logs.tensorboard import TensorBoard
from hooks.logs.wandb import WandB
from hooks.plan import HookError, Plan
from hooks.rhythm import Rhythm, paced_by
from hooks.self_supervised.byol import BYOL
from hooks.self_supervised.deepcluster import DeepCluster
from hooks.self_supervised.dino import DINO
from hooks.self_supervised.distillation import Distillation
from hooks.self_supervised.feature_probe import FeatureProbe
from hooks.self_supervised.ibot import IBOT
from hooks.self_supervised.moco import MoCo
from hooks.self_supervised.swav import SwAV
from hooks.self_supervised.swav_momentum import SwAVMomentum
from hooks.state import State
from hooks.stats.activation_stats import ActivationStats
from hooks.stats.device_stats import DeviceStats
from hooks.stats.layer_memory import LayerMemory
from hooks.stats.memory_snapshot import MemorySnapshot
from hooks.stats.memory_stats import MemoryStats
from hooks.stats.model_complexity import ModelComplexity
from hooks.stats.optimizer_stats import OptimizerStats
from hooks.stats.perf_stats import PerfStats
from hooks.stats.profiler import Profiler
from hooks.stats.row_stats import RowStats
from hooks.stats.runtime_info import RuntimeInfo
from hooks.stats.throughput import Throughput
from hooks.training.anomaly_detection import AnomalyDetection
from hooks.training.early_stopping import EarlyStopping
from hooks.training.ema import EMA
from hooks.training.empty_cache import EmptyCache
from hooks.training.freeze_parameters import FreezeParameters
from hooks.training.garbage_collection import GarbageCollection
from hooks.training.gradient_clip import GradientClip
from hooks.training.loss_spike import LossSpike
from hooks.training.nan_guard import NanGuard
from hooks.training.output_mask import OutputMask
from hooks.training.param_scheduler import ParamScheduler
from hooks.training.precise_batch_norm import PreciseBatchNorm
from hooks.training.sampler_seed import DistSamplerSeed
from hooks.training.sync_buffers import SyncBuffers
from hooks.training.time_limit import TimeLimit

HOOKS: dict[str, type[Hook]] = {
    # training
    "anomaly_detection": AnomalyDetection,
    "early_stopping": EarlyStopping,
    "ema": EMA,
    "empty_cache": EmptyCache,
    "freeze_parameters": FreezeParameters,
    "garbage_collection": GarbageCollection,
    "gradient_clip": GradientClip,
    "loss_spike": LossSpike,
    "nan_guard": NanGuard,
    "output_mask": OutputMask,
    "param_scheduler": ParamScheduler,
    "precise_batch_norm": PreciseBatchNorm,
    "sampler_seed": DistSamplerSeed,
    "sync_buffers": SyncBuffers,
    "time_limit": TimeLimit,
    # stats
    "activation_stats": ActivationStats,
    "device_stats": DeviceStats,
    "layer_memory": LayerMemory,
    "memory_snapshot": MemorySnapshot,
    "memory_stats": MemoryStats,
    "model_complexity": ModelComplexity,
    "optimizer_stats": OptimizerStats,
    "perf_stats": PerfStats,
    "profiler": Profiler,
    "row_stats": RowStats,
    "runtime_info": RuntimeInfo,
    "throughput": Throughput,
    # logs
    "console": Console,
    "json_lines": JsonLines,
    "mlflow": MLflow,
    "output_csv": OutputCSV,
    "progress_bar": ProgressBar,
    "tensorboard": TensorBoard,
    "wandb": WandB,
    # checkpointing
    "checkpoint": Checkpoint,
    "export": Export,
    # self_supervised
    "byol": BYOL,
    "deepcluster": DeepCluster,
    "dino": DINO,
    "distillation": Distillation,
    "feature_probe": FeatureProbe,
    "ibot": IBOT,
    "moco": MoCo,
    "swav": SwAV,
    "swav_momentum": SwAVMomentum,
}

__all__ = [
    "BYOL",
    "DINO",
    "EMA",
    "EVENTS",
    "HOOKS",
    "IBOT",
    "ActivationStats",
    "AnomalyDetection",
    "Checkpoint",
    "Console",
    "DeepCluster",
    "DeviceStats",
    "DistSamplerSeed",
    "Distillation",
    "EarlyStopping",
    "EmptyCache",
    "Export",
    "FeatureProbe",
    "FreezeParameters",
    "GarbageCollection",
    "GradientClip",
    "Hook",
    "HookError",
    "JsonLines",
    "LayerMemory",
    "LossSpike",
    "MLflow",
    "MemorySnapshot",
    "MemoryStats",
    "MoCo",
    "ModelComplexity",
    "NanGuard",
    "OptimizerStats",
    "OutputCSV",
    "OutputMask",
    "ParamScheduler",
    "PerfStats",
    "Plan",
    "PreciseBatchNorm",
    "Priority",
    "Profiler",
    "ProgressBar",
    "Ranks",
    "Rhythm",
    "RowStats",
    "RuntimeInfo",
    "State",
    "SwAV",
    "SwAVMomentum",
    "SyncBuffers",
    "TensorBoard",
    "Throughput",
    "TimeLimit",
    "WandB",
    "paced_by",
]
