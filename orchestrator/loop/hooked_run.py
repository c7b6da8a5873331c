"""A run of a training with hooks, which it may share with other runs. Runs in workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hooks.event_plan import Plan
from orchestrator.experiment.checks.phases import list_run_phases
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.inference import Inference
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.saving.saving_settings import SavingSettings
from orchestrator.loop.training import Training
from orchestrator.loop.training_run import UNSHARED, RunShare, TrainingRun


class HookedRun(TrainingRun):
    """A run of a training, with its own evaluations and checkpoints."""

    def __init__(
        self,
        training: Training,
        experiment: Experiment,
        context: RunContext,
        plan: Plan,
        share: RunShare = UNSHARED,
    ) -> None:
        self.training = training
        super().__init__(
            experiment,
            context,
            plan,
            task=training.task,
            clock=training.clock,
            state=training.state,
            epoch=training.epoch,
            contents=training.contents,
            share=share,
        )
        self.inference = Inference(self, training, context.limits.evaluated_batches)
        self.evaluation = Evaluation(self, training, self.inference)

    def list_phases(self) -> tuple[str, ...]:
        return tuple(list_run_phases(self.experiment, self.training.data.phases))

    def is_validation_due(self) -> bool:
        every = self.experiment.validate_every
        if not self.training.data.phase_names("val") or not every.count:
            return False
        return self.state.finished or bool(self.decision) or every.due(self.state)

    def is_test_due(self) -> bool:
        """Return whether a test follows the end of training."""
        return bool(self.training.data.phase_names("test")) and not self.decision.is_interruption

    def _make_checkpoints(self, settings: SavingSettings) -> RunCheckpoints:
        return RunCheckpoints(
            self.saver,
            self.state,
            self.world,
            self.clock,
            saves_end=settings.saves_end,
            # Not a method of the run, which would never be freed without a garbage collection.
            preparing=partial(_prepare_save, self.training, is_leader=self.is_leader),
        )


@contextmanager
def _prepare_save(training: Training, *, is_leader: bool) -> Iterator[None]:
    """Prepare a training for a checkpoint of one of its runs, which is collected within the
    context."""
    if not is_leader:
        # The rows that led to the checkpoint are those of the training.
        training.recorder.sync()
    with training.modes.evaluating():
        yield
