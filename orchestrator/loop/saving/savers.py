"""The savers of checkpoints: which one a run has. Runs in workers."""

from hooks.event_plan import Plan
from hooks.state import State
from orchestrator.disk.checkpoints.training_files import TrainingFiles
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.saving.background_saver import BackgroundSaver
from orchestrator.loop.saving.collecting import CheckpointCollector
from orchestrator.loop.saving.contents import CheckpointContents
from orchestrator.loop.saving.cursor import RunCursor
from orchestrator.loop.saving.flushing import RowFlusher
from orchestrator.loop.saving.random_states import RandomStates
from orchestrator.loop.saving.saver import CheckpointSaver, Saver
from orchestrator.loop.saving.saving_settings import SavingSettings


def make_saver(
    context: RunContext,
    plan: Plan,
    *,
    state: State,
    contents: CheckpointContents,
    cursor: RunCursor,
    random_states: RandomStates,
    flusher: RowFlusher,
    training_files: TrainingFiles | None = None,
) -> Saver:
    """Return the saver of a run with a context and a plan, as its checkpoint hooks ask for it.

    `training_files` are those of the training that another run may have stored.
    """
    if context.store is None or not context.saves:
        return Saver(state)
    collector = CheckpointCollector(
        state=state,
        plan=plan,
        contents=contents,
        cursor=cursor,
        world=context.world,
        random_states=random_states,
    )
    parts = (context.store, collector, flusher, context.send_artifacts)
    if SavingSettings.read(plan).in_background:
        return BackgroundSaver(*parts)
    return CheckpointSaver(*parts, training_files)
