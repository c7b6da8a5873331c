"""A run of a training with hooks, which it may share with other runs. Runs in workers."""

from dataclasses import dataclass

from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.inference import Inference
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import TrainingRun


@dataclass(eq=False, kw_only=True)
class HookedRun(TrainingRun):
    """A run of a training, with its own evaluations. `build_run` builds one."""

    training: Training
    inference: Inference
    evaluation: Evaluation

    def is_validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.training.data.phase_names("val") or not every.count:
            return False
        return self.state.finished or bool(self.decision) or every.due(self.state)

    def is_test_due(self) -> bool:
        """Return whether a test follows the end of training."""
        return bool(self.training.data.phase_names("test")) and not self.decision.is_interruption
