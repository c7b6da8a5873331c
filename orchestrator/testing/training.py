"""Training in a short loop on the CPU, for tests of hooks."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hooks.hook import Hook
from hooks.state import State
from orchestrator.loop.model.torch_settings import torch_threads
from orchestrator.loop.run_context import RunContext
from orchestrator.task import Task
from orchestrator.testing.small_loop import KeepingRecorder, Screen, make_small_loop
from orchestrator.testing.small_task import SmallTask


@dataclass
class Trained:
    """The results of `train`."""

    state: State
    """State of the loop at its end."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """Metrics of each report."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Recorded values of each iteration, tensors as numbers."""
    lines: list[str] = field(default_factory=list)
    """Lines that hooks printed."""


def train(
    hooks: Mapping[str, Hook] | None = None, task: Task | None = None, **experiment: Any
) -> Trained:
    """Train a task with hooks in the real loop on the CPU.

    Hooks that the task requires are added, an experiment's default hooks are not. Files of hooks
    are deleted at the end.

    Args:
        hooks: Hooks by name.
        task: The task; by default a small one.
        **experiment: Keys of an experiment file, such as `steps`, `batch_size` and `accumulate`;
            the length is one epoch by default.

    Returns:
        The reports, the rows, the lines that hooks printed, and the final state.

    Raises:
        ConfigError: If there is no such key.

    Example:
        ```python
        trained = train({"clip": GradientClip(max_norm=1.0)}, steps=3)
        norms = [row["grad_norm"] for row in trained.rows if row["phase"] == "train"]
        ```
    """
    screen = Screen()
    recorder = KeepingRecorder()
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        context = RunContext(recorder=recorder, artifacts=Path(folder), display=screen)
        loop = make_small_loop(task or SmallTask(), hooks or {}, experiment, context)
        reports = [report.metrics for report in loop.run()]
    return Trained(loop.state, reports, recorder.rows, screen.lines)
