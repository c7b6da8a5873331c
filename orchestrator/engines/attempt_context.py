"""The context in which an attempt of a run trains: its rows, its media, its checkpoints and the files
of its hooks. Used in workers."""

from collections.abc import Callable

from orchestrator.disk.artifacts import Artifacts
from orchestrator.disk.attempts import Attempt, rank_folder
from orchestrator.disk.media import MediaWriter
from orchestrator.disk.rows.recorder import Recorder
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.experiment.load import to_dict
from orchestrator.experiment.sections.experiment import Experiment
from orchestrator.loop.run_context import RunContext


def make_context(
    assigned: AssignedRun,
    record: Attempt,
    artifacts: Artifacts,
    stop_requested: Callable[[], bool],
) -> RunContext:
    """Return the context in which a run trains; fetches the files that its hooks wrote in earlier
    attempts.

    Args:
        assigned: The run.
        record: Its attempt, which has begun.
        artifacts: Files that its hooks write.
        stop_requested: Returns whether training should save and end.
    """
    if record.number:
        artifacts.fetch()
    experiment = assigned.resolved.experiment
    return RunContext(
        world=assigned.world,
        recorder=_make_recorder(assigned, record, experiment),
        media=_open_media(assigned, record),
        store=assigned.store,
        artifacts=artifacts.folder,
        send_artifacts=artifacts.send,
        display=assigned.display,
        config={**to_dict(experiment), "sweep": assigned.assignment.sweep},
        name=assigned.folder.name,
        stop_requested=stop_requested,
    )


def _make_recorder(assigned: AssignedRun, record: Attempt, experiment: Experiment) -> Recorder:
    world = assigned.world
    return Recorder(
        assigned.folder.storage,
        rank_folder(record.number, world.rank),
        {"rank": world.rank, "node": world.node, "attempt": record.number},
        upload_interval_s=experiment.upload_every,
    )


def _open_media(assigned: AssignedRun, record: Attempt) -> MediaWriter:
    """Return the writer of rank 0, which continues where the checkpoint was saved."""
    if not assigned.world.is_master:
        return MediaWriter()
    checkpoint = record.checkpoint
    kept = assigned.store.read_manifest(checkpoint).get("media", 0) if checkpoint else 0
    return MediaWriter(assigned.folder.storage, kept)
