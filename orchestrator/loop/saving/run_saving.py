"""Building the parts of a run that save its rows and checkpoints. Runs in workers."""

from dataclasses import dataclass

from hooks.event_plan import Plan
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.loop.loop_state import LoopState
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.background_saver import BackgroundSaver
from orchestrator.loop.saving.collecting import CheckpointCollector
from orchestrator.loop.saving.contents import CheckpointContents
from orchestrator.loop.saving.cursor import EpochProgress, RunCursor
from orchestrator.loop.saving.flushing import RowFlusher
from orchestrator.loop.saving.random_states import RandomStates
from orchestrator.loop.saving.saver import CheckpointSaver, Saver
from orchestrator.loop.saving.saving_settings import SavingSettings


@dataclass(frozen=True, kw_only=True)
class RunSaving:
    """The parts of a run that save its rows and checkpoints."""

    cursor: RunCursor
    random_states: RandomStates
    flusher: RowFlusher
    saver: Saver
    saves_end: bool
    """Whether a hook saves the end of training."""


def build_saving(
    context: RunContext,
    plan: Plan,
    state: LoopState,
    epoch: EpochProgress,
    contents: CheckpointContents,
    training_files: TrainingFiles | None = None,
) -> RunSaving:
    """Build what saves a run, as its checkpoint hooks ask for it.

    Args:
        context: The surroundings of the run.
        plan: The plan of its hooks.
        state: The state of its training.
        epoch: The progress of that training within an epoch.
        contents: The contents of its checkpoints.
        training_files: Files of the training that another run of it may have stored.

    Returns:
        The parts, among them a saver that stores nothing if the run has no checkpoints.
    """
    cursor = RunCursor(state, epoch)
    random_states = RandomStates()
    flusher = RowFlusher(context.recorder, context.media, plan, state, cursor)
    settings = SavingSettings.read(plan)
    collector = CheckpointCollector(
        state=state,
        plan=plan,
        contents=contents,
        cursor=cursor,
        world=context.world,
        random_states=random_states,
    )
    if context.store is None or not context.saves:
        saver = Saver(state)
    elif settings.in_background:
        saver = BackgroundSaver(context.store, collector, flusher, context.send_artifacts)
    else:
        saver = CheckpointSaver(
            context.store, collector, flusher, context.send_artifacts, training_files
        )
    return RunSaving(
        cursor=cursor,
        random_states=random_states,
        flusher=flusher,
        saver=saver,
        saves_end=settings.saves_end,
    )
