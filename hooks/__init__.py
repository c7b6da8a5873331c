"""Hooks: what happens around a step of a PyTorch training loop. Knows torch; knows neither Ray nor the orchestrator.

`HOOKS` is the one table of the hooks that ship, name to class.
"""

from hooks.checkpointing.checkpoint import Checkpoint
from hooks.hook import EVENTS, Hook, Priority, Ranks
from hooks.logs.console import Console
from hooks.logs.json_lines import JsonLines
from hooks.logs.progress_bar import ProgressBar
from hooks.logs.tensorboard import TensorBoard
from hooks.plan import HookError, Plan
from hooks.rhythm import Rhythm, paced_by
from hooks.state import State
from hooks.stats.memory_stats import MemoryStats
from hooks.stats.perf_stats import PerfStats
from hooks.training.early_stopping import EarlyStopping
from hooks.training.ema import EMA
from hooks.training.gradient_clip import GradientClip
from hooks.training.nan_guard import NanGuard
from hooks.training.param_scheduler import ParamScheduler
from hooks.training.sampler_seed import DistSamplerSeed
from hooks.training.sync_buffers import SyncBuffers

HOOKS: dict[str, type[Hook]] = {
    # training
    "early_stopping": EarlyStopping,
    "ema": EMA,
    "gradient_clip": GradientClip,
    "nan_guard": NanGuard,
    "param_scheduler": ParamScheduler,
    "sampler_seed": DistSamplerSeed,
    "sync_buffers": SyncBuffers,
    # stats
    "memory_stats": MemoryStats,
    "perf_stats": PerfStats,
    # logs
    "console": Console,
    "json_lines": JsonLines,
    "progress_bar": ProgressBar,
    "tensorboard": TensorBoard,
    # checkpointing
    "checkpoint": Checkpoint,
}

__all__ = ["EVENTS", "HOOKS", "Hook", "HookError", "Plan", "Priority", "Ranks", "Rhythm", "State", "paced_by"]
