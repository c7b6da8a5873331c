"""A short loop on the CPU, which keeps its rows and lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from hooks.hook import Hook
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.make_hooks import make_hooks
from orchestrator.experiment.optimizer_defaults import fill_optimization_defaults
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.custom.custom_loop import CustomLoop
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.task import Task, has_custom_loop

SmallLoop = Loop | CustomLoop
"""A loop that trains a task, or that leaves the training to the task."""


class Screen:
    """A display that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)

    def progress(self, label: str, completed: int, total: int, text: str = "") -> None:
        """Do nothing."""


class KeepingRecorder(Recorder):
    """A recorder that keeps all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any] | None, numbers: Sequence[float] = ()) -> None:
        """Record a row, and keep it as a dict."""
        super().append(row, numbers)
        self.rows.append({name: _to_number(value) for name, value in self.recent[-1].items()})


def _to_number(value: Any) -> Any:
    """Return a tensor of one element as a number, and anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def make_small_loop(
    task: Task, hooks: Mapping[str, Hook], settings: Mapping[str, Any], context: RunContext
) -> SmallLoop:
    """Make a loop with the given hooks and those that the task requires.

    Args:
        task: The task.
        hooks: Hooks by name.
        settings: Keys of an experiment file; the length is one epoch by default.
        context: What the loop gets from its surroundings.

    Raises:
        ConfigError: If there is no such key.
    """
    entries = {
        "name": "test",
        "task": f"{type(task).__module__}:{type(task).__qualname__}",
        "batch_size": 4,
        **settings,
    }
    if "steps" not in settings:
        entries.setdefault("epochs", 1)
    experiment = fill_optimization_defaults(validate(Experiment, entries, ""), type(task))
    all_hooks = {**_make_required_hooks(task, hooks), **hooks}
    if has_custom_loop(type(task)):
        return CustomLoop(task, experiment, all_hooks, context)
    return Loop(task, experiment, all_hooks, context)


def _make_required_hooks(task: Task, hooks: Mapping[str, Hook]) -> dict[str, Hook]:
    """Return the hooks that a task requires, without those whose name or class is given."""
    classes = {type(hook) for hook in hooks.values()}
    required = {}
    for name, built in make_hooks({}, task.required_hooks(), defaults=()).items():
        if built and name not in hooks and type(built.hook) not in classes:
            required[name] = built.hook
    return required
