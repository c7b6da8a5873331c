"""Hooks: what happens around a step of a PyTorch training loop. Imports torch, and neither Ray nor
the orchestrator.

A name is imported at its first use, from the module that `hooks.table` gives. So
`hooks.metrics.direction` can be imported without torch.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hooks.table import HOOKS as HOOKS
from hooks.table import MODULE_OF_HOOK, MODULE_OF_OTHER

if TYPE_CHECKING:
    from hooks.checkpointing.checkpoint import Checkpoint as Checkpoint
    from hooks.checkpointing.export import Export as Export
    from hooks.errors import HookError as HookError
    from hooks.event_plan import Plan as Plan
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


def _require_own_orchestrator() -> None:
    """Raise ImportError if a user's package `orchestrator` comes first on the import path, and
    hides this project's."""
    own = Path(__file__).parents[1] / "orchestrator"
    spec = PathFinder.find_spec("orchestrator", sys.path)
    if spec is None or not own.is_dir():
        return

    places = spec.submodule_search_locations or [str(spec.origin)]
    if own.resolve() not in [Path(place).resolve() for place in places]:
        raise ImportError(
            f"the package `orchestrator` must be {own}, got {', '.join(places)};"
            " rename yours to my_orchestrator"
        )


_require_own_orchestrator()


_MODULE_OF = {**MODULE_OF_HOOK, **MODULE_OF_OTHER}

__all__ = sorted([*_MODULE_OF, "HOOKS"])


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hooks' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
