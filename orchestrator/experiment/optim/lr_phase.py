"""A phase of a learning-rate schedule: one scheduler, and its part of the run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from orchestrator.errors import ConfigError, raise_problems
from orchestrator.experiment.fields.class_models import make_signature_model
from orchestrator.experiment.fields.validation import validate
from orchestrator.experiment.optim.component import FROM_TASK
from orchestrator.experiment.optim.construction import NoOptimizer, build_component, check_values
from orchestrator.experiment.optim.scheduler import RATES, SCHEDULERS, find_scheduler_class
from orchestrator.experiment.optim.step_counts import find_wrong_counts
from orchestrator.experiment.optim.task_factories import fill_method_defaults
from orchestrator.task import Task
from orchestrator.user_code.failures import find_source_location


@dataclass(frozen=True)
class LRPhase:
    """A scheduler, its arguments in its own steps, and its part of the schedule."""

    path: str
    """Dotted path of the scheduler in the experiment."""
    kind: str
    """The scheduler's `type`."""
    arguments: Mapping[str, Any]
    begin: int = 0
    """Steps of the schedule after which it begins."""
    last: int | None = None
    """The last step of the schedule that it takes; None for no end."""
    every: int = 1
    """Steps of the schedule for each of its own."""

    def check(self, task: type[Task]) -> None:
        """Check the scheduler before there is an optimizer, or raise ConfigError."""
        if self.kind == FROM_TASK:
            fill_method_defaults(self.arguments, task, "scheduler", self.path)
            return
        if self.kind in SCHEDULERS:
            raise_problems(find_wrong_counts(self.arguments, self.path))
        cls: Any = find_scheduler_class(self.kind, self.path)
        arguments = self._add_rate(1.0)
        validate(make_signature_model(cls, extra_keys=("type",)), arguments, self.path)
        if cls in SCHEDULERS.values():
            check_values(cls, NoOptimizer(), arguments, self.path)

    def build(self, task: Task, optimizer: Optimizer) -> Any | None:
        """Build the scheduler, or return None if the task's method does; may raise ConfigError."""
        if self.kind == FROM_TASK:
            return self._build_by_task(task, optimizer)
        cls = find_scheduler_class(self.kind, self.path)
        arguments = self._add_rate([group["lr"] for group in optimizer.param_groups])
        return build_component(cls, optimizer, arguments, self.path)

    def _build_by_task(self, task: Task, optimizer: Optimizer) -> Any | None:
        built = task.scheduler(optimizer, **self.arguments)
        has_step = callable(getattr(built, "step", None)) and not isinstance(built, type)
        if built is None or has_step:
            return built
        expected = "must return a scheduler or None"
        message = f"{type(task).__name__}.scheduler() {expected}, got {built!r}"
        raise ConfigError.at(self.path, f"{message}{find_source_location(task.scheduler)}")

    def _add_rate(self, rate: Any) -> dict[str, Any]:
        """Return the arguments, with the optimizer's rate where the scheduler sets the rate."""
        rates = {RATES[self.kind]: rate} if self.kind in RATES else {}
        return {**rates, **self.arguments}
