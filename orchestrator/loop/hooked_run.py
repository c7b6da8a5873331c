"""A run of a training with hooks, which it may share with other runs. Runs in workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    def check_data(self) -> None:
        """Raise ConfigError if the data does not suit the run's hooks and evaluations."""
        with self.own_fields:
            self.evaluation.check_data(self.phases)

    def check_phase_names(self) -> None:
        """Raise TaskError if a phase and a set of weights have the same name."""
        with self.own_fields:
            self.evaluation.check_phase_names()

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add metrics of the training to the next report."""
        with self.own_fields:
            self.state.metrics |= metrics

    def validate(self) -> None:
        """Validate if it is due, and save what hooks request before or after it; collective."""
        with self.own_fields:
            self.checkpoints.save_if_requested()
            if self.is_validation_due():
                self.evaluation.evaluate("val")
            self.cursor.end_validation()
            self.checkpoints.save_if_requested()

    def test(self) -> None:
        """Test the trained model; collective."""
        with self.own_fields:
            self.random_states.rewind()
            self.evaluation.evaluate("test")
