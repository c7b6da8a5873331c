"""Building a run of a training: its progress, rows, checkpoints and evaluations. Runs in workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hooks.event_plan import Plan
from orchestrator.experiment.checks.phases import list_run_phases
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.evaluation import Evaluation
from orchestrator.loop.hooked_run import HookedRun
from orchestrator.loop.inference import Inference
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.run_share import RunShare
from orchestrator.loop.saving.cursor import RunCursor
from orchestrator.loop.saving.run_checkpoints import RunCheckpoints
from orchestrator.loop.saving.run_saving import build_saving
from orchestrator.loop.step.stages import StepContext
from orchestrator.loop.training import Training


def build_run(
    training: Training,
    experiment: Experiment,
    context: RunContext,
    plan: Plan,
    share: RunShare | None = None,
) -> HookedRun:
    """Build a run that has its hooks in `plan`, and a training for itself unless `share` says
    otherwise."""
    share = share or RunShare(plan.hooks)
    state = training.state
    saving = build_saving(
        context, plan, state, training.epoch, training.contents, share.training_files
    )
    checkpoints = RunCheckpoints(
        saver=saving.saver,
        state=state,
        world=context.world,
        clock=training.clock,
        saves_end=saving.saves_end,
        preparing=partial(_prepare_save, training, is_leader=share.is_leader),
    )
    inference = _build_inference(training, experiment, context, plan, saving.cursor)
    return HookedRun(
        task=training.task,
        experiment=experiment,
        context=context,
        share=share,
        plan=plan,
        state=state,
        phases=tuple(list_run_phases(experiment, training.data.phases)),
        cursor=saving.cursor,
        random_states=saving.random_states,
        contents=training.contents,
        flusher=saving.flusher,
        checkpoints=checkpoints,
        training=training,
        inference=inference,
        evaluation=Evaluation(training.task, state, context.world, training.data, inference),
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


def _build_inference(
    training: Training,
    experiment: Experiment,
    context: RunContext,
    plan: Plan,
    cursor: RunCursor,
) -> Inference:
    step_context = StepContext(
        task=training.task,
        state=training.state,
        plan=plan,
        clock=training.clock,
        precisions=training.precisions,
        recorder=context.recorder,
        world=context.world,
    )
    return Inference(
        step_context,
        training.data,
        cursor,
        validate_every=experiment.validate_every,
        max_batches=context.limits.evaluated_batches,
    )
