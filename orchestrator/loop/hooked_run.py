"""A run of a training with hooks, which it may share with other runs. Runs in workers."""

from hooks.event_plan import Plan
from orchestrator.experiment.checks.phases import list_run_phases
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.inference import Inference
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import TrainingRun


class HookedRun(TrainingRun):
    """A run of a training, with its own evaluations and checkpoints."""

    def __init__(
        self, training: Training, experiment: Experiment, context: RunContext, plan: Plan
    ) -> None:
        super().__init__(
            experiment,
            context,
            plan,
            task=training.task,
            clock=training.clock,
            state=training.state,
            epoch=training.epoch,
            contents=training.contents,
        )
        self.training = training
        self.inference = Inference(self, training)
        self.evaluation = Evaluation(self, training, self.inference)

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
        with self.training.modes.evaluating():
            super().start_save()
