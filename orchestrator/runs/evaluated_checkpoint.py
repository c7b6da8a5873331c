"""The checkpoint that an evaluation or a prediction uses, found and verified. Used in the driver."""

from hooks.metrics.names import get_kind
from orchestrator.disk.evaluations import get_evaluated_run
from orchestrator.disk.metadata import Evaluated
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import CheckpointError, UsageError
from orchestrator.runs.checkpoints import open_checkpoints
from orchestrator.runs.evaluation_words import name_with_article


def find_subject(run: RunFolder, label: str, phase: str, *, checks_data: bool) -> Evaluated:
    """Return the checkpoint of a label, to be evaluated on the data of a phase.

    With `checks_data`, the run must have had such data. Raises UsageError if there is no such
    checkpoint, or no data.
    """
    _check_has_checkpoints(run)
    store = open_checkpoints(run)
    try:
        name = store.resolve(label)
        sha256 = store.verify(name)
        manifest = store.read_manifest(name)
        position = store.read_position(name)
    except CheckpointError as error:
        raise UsageError(str(error)) from None

    phases = manifest.get("phases", [phase])
    had_data = any(phase in (known, get_kind(known)) for known in phases)
    if checks_data and not had_data:
        raise UsageError(
            f"{run} has no {phase} data: when {name} was saved, data() returned only"
            f" {', '.join(phases)}"
        )
    return Evaluated(str(run), name, sha256, position.epoch, position.step, phase)


def _check_has_checkpoints(run: RunFolder) -> None:
    """Raise UsageError for an evaluation, which trains nothing."""
    evaluated = run.read_metadata().evaluates
    if evaluated:
        raise UsageError(
            f"{run} is {name_with_article(evaluated)}, and has no checkpoints; use its run,"
            f" {get_evaluated_run(run)}"
        )
