"""A small task, a ready state, and a short loop on the CPU."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from hooks.hook import Hook
from hooks.state import State
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.experiment.components import make_hooks
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optimizer_defaults import fill_optimization_defaults
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.torch_settings import torch_threads
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.task_errors import check_has_gradient
from orchestrator.task import Task, has_custom_loop


@dataclass
class SmallTask(Task):
    """Classifies points (5,) into three classes, with BatchNorm and dropout; a batch is
    `[points, labels]`."""

    train: int = 24  # type: ignore[assignment]  # a field, not a custom loop
    """Training samples."""
    val: int = 8
    """Validation samples."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
        )

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {
            phase: _points(size, seed)
            for seed, (phase, size) in enumerate({"train": self.train, "val": self.val}.items())
        }

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch[1])

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        return {"accuracy": (output.argmax(dim=1) == batch[1]).float()}


def _points(size: int, seed: int) -> Dataset[Any]:
    points = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (points[:, 0] > 0).long() + (points[:, 1] > 0.5).long())


class Screen:
    """A display that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        pass


class KeepingRecorder(Recorder):
    """A recorder that keeps all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        super().append(row, numbers)
        self.rows.append({name: _plain(value) for name, value in self.recent[-1].items()})


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


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
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        loop, recorder = make_loop(
            task or SmallTask(), hooks or {}, experiment, artifacts=Path(folder), display=screen
        )
        reports = [report.metrics for report in loop.run()]
    return Trained(loop.state, reports, recorder.rows, screen.lines)


def make_loop(
    task: Task,
    hooks: Mapping[str, Hook],
    settings: Mapping[str, Any],
    recorder: KeepingRecorder | None = None,
    **context: Any,
) -> tuple[Loop, KeepingRecorder]:
    """Make a loop and its recorder; `context` has further fields of its RunContext."""
    length = {} if "steps" in settings else {"epochs": 1}
    kind = f"{type(task).__module__}:{type(task).__qualname__}"
    experiment = validate(
        Experiment, {"name": "test", "task": kind, "batch_size": 4, **length, **settings}, ""
    )
    experiment = fill_optimization_defaults(experiment, type(task))
    kinds = {type(hook) for hook in hooks.values()}
    required = {
        name: built.hook
        for name, built in make_hooks({}, task.required_hooks(), defaults=()).items()
        if built and name not in hooks and type(built.hook) not in kinds
    }
    recorder = recorder or KeepingRecorder()
    loop_class: Any = CustomLoop if has_custom_loop(type(task)) else Loop
    return loop_class(
        task, experiment, {**required, **hooks}, RunContext(recorder=recorder, **context)
    ), recorder


def ready_state(task: Task | None = None, **fields: Any) -> State:
    """Return the state of `on_gradients` in the first iteration, with model, gradients, batch, output
    and loss. Any event can be called with it.

    Args:
        task: The task; by default a small one.
        **fields: Values for fields of the state, such as `step=5`.

    Returns:
        The state.

    Example:
        ```python
        state = ready_state()
        GradientClip(max_norm=1.0).on_gradients(state)
        state.row["grad_norm"]
        ```
    """
    task = task or SmallTask()
    loop, _ = make_loop(task, {}, {})
    state = loop.state
    state.phase = "train"
    state.phase_length = len(state.loaders["train"])
    state.batch = next(iter(state.fresh_batches("train")))
    state.batch_size = state.samples_in(state.batch)
    state.output = state.forward(state.model, state.batch)
    loss: Any = task.loss(state.output, state.batch)
    state.loss = loss if isinstance(loss, Tensor) else reduce(add, loss.values())
    try:
        state.loss.backward()
    except RuntimeError:
        check_has_gradient(task.loss, state.loss)
        raise
    state.display = Screen()
    for name, value in fields.items():
        setattr(state, name, value)
    return state
