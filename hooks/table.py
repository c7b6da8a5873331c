"""The hooks that ship, by the names of their files, and the other names of `hooks`."""

from hooks.checkpointing.checkpoint import Checkpoint as Checkpoint
from hooks.checkpointing.export import Export as Export
from hooks.errors import HookError as HookError
from hooks.hook import EVENTS as EVENTS
from hooks.hook import Hook as Hook
from hooks.hook import Priority as Priority
from hooks.hook import Ranks as Ranks
from hooks.interval import Interval as Interval
from hooks.interval import Iterations as Iterations
from hooks.interval import Steps as Steps
from hooks.interval import at_interval as at_interval
from hooks.logs.console import Console as Console
from hooks.logs.json_lines import JsonLines as JsonLines
from hooks.logs.mlflow import MLflow as MLflow
from hooks.logs.output_csv import OutputCSV as OutputCSV
from hooks.logs.progress_bar import ProgressBar as ProgressBar
from hooks.logs.tensorboard import TensorBoard as TensorBoard
from hooks.logs.wandb import WandB as WandB
from hooks.plan import Plan as Plan
from hooks.self_supervised.byol import BYOL as BYOL
from hooks.self_supervised.deepcluster import DeepCluster as DeepCluster
from hooks.self_supervised.dino import DINO as DINO
from hooks.self_supervised.distillation import Distillation as Distillation
from hooks.self_supervised.ibot import IBOT as IBOT
from hooks.self_supervised.moco import MoCo as MoCo
from hooks.self_supervised.swav import SwAV as SwAV
from hooks.self_supervised.swav_momentum import SwAVMomentum as SwAVMomentum
from hooks.setup import Setup as Setup
from hooks.state import State as State
from hooks.stats.activation_stats import ActivationStats as ActivationStats
from hooks.stats.device_stats import DeviceStats as DeviceStats
from hooks.stats.layer_memory import LayerMemory as LayerMemory
from hooks.stats.memory_snapshot import MemorySnapshot as MemorySnapshot
from hooks.stats.memory_stats import MemoryStats as MemoryStats
from hooks.stats.model_complexity import ModelComplexity as ModelComplexity
from hooks.stats.optimizer_stats import OptimizerStats as OptimizerStats
from hooks.stats.perf_stats import PerfStats as PerfStats
from hooks.stats.profiler import Profiler as Profiler
from hooks.stats.row_stats import RowStats as RowStats
from hooks.stats.runtime_info import RuntimeInfo as RuntimeInfo
from hooks.stats.throughput import Throughput as Throughput
from hooks.training.anomaly_detection import AnomalyDetection as AnomalyDetection
from hooks.training.early_stopping import EarlyStopping as EarlyStopping
from hooks.training.ema import EMA as EMA
from hooks.training.empty_cache import EmptyCache as EmptyCache
from hooks.training.freeze_parameters import FreezeParameters as FreezeParameters
from hooks.training.garbage_collection import GarbageCollection as GarbageCollection
from hooks.training.gradient_clip import GradientClip as GradientClip
from hooks.training.loss_spike import LossSpike as LossSpike
from hooks.training.nan_guard import NanGuard as NanGuard
from hooks.training.output_mask import OutputMask as OutputMask
from hooks.training.param_scheduler import ParamScheduler as ParamScheduler
from hooks.training.precise_batch_norm import PreciseBatchNorm as PreciseBatchNorm
from hooks.training.sampler_seed import DistSamplerSeed as DistSamplerSeed
from hooks.training.sync_buffers import SyncBuffers as SyncBuffers
from hooks.training.time_limit import TimeLimit as TimeLimit

HOOKS: dict[str, type[Hook]] = {
    cls.__module__.rpartition(".")[2]: cls
    for cls in list(vars().values())
    if isinstance(cls, type) and issubclass(cls, Hook) and cls is not Hook
}
