"""A run of a training with hooks, which it may share with other runs. Runs in workers."""

from typing import Any

from hooks.event_plan import Plan
from hooks.metrics.names import get_kind
from orchestrator.experiment.checks.phases import list_run_phases
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.inference import Inference
from orchestrator.loop.membership import ALONE, Membership
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import RunParts, TrainingRun


class HookedRun(TrainingRun):
    """A run of a training, with its own evaluations and checkpoints."""

    def __init__(
        self,
        training: Training,
        experiment: Experiment,
        context: RunContext,
        plan: Plan,
        membership: Membership = ALONE,
    ) -> None:
        parts = RunParts(
            training.task, training.clock, training.state, training.epoch, training.contents
        )
        super().__init__(parts, experiment, context, plan, membership)
        self.training = training
        self.inference = Inference(self, training)
        self.evaluation = Evaluation(self, training, self.inference)
        self._hook_metrics = membership.hook_metrics

    def list_phases(self) -> tuple[str, ...]:
        return tuple(list_run_phases(self.experiment, self.training.data.phases))

    def is_validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.training.data.phase_names("val") or not every.count:
            return False
        return self.state.finished or bool(self.stop) or every.due(self.state)

    def is_test_due(self) -> bool:
        """Return whether a test follows the end of training."""
        return bool(self.training.data.phase_names("test")) and not self.stop.is_interruption

    def start_save(self) -> None:
        if self.recorder is not self.training.recorder:
            # The rows that led to the checkpoint are those of the training.
            self.training.recorder.sync()
        with self.training.modes.evaluating():
            super().start_save()

    def _collect_metrics(self) -> dict[str, Any]:
        metrics = super()._collect_metrics()
        if get_kind(self.state.phase) != "test":
            for name, value in self._hook_metrics.items():
                metrics.setdefault(name, value)
        return metrics
