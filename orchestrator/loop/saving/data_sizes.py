"""The numbers of samples at a checkpoint, and now. Used in workers."""

from collections.abc import Mapping

from hooks.state import State
from orchestrator.errors import CheckpointError
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.units import format_count


def compare_data_sizes(loaded: LoadedCheckpoint, sizes: Mapping[str, int], state: State) -> None:
    """Show a line for each phase whose number of samples has changed since a checkpoint.

    Args:
        loaded: The checkpoint.
        sizes: Number of samples now, by phase.
        state: Where the master shows the lines.

    Raises:
        CheckpointError: If the position in the epoch is beyond the last sample.
    """
    position = loaded.position
    sizes_before = loaded.manifest.get("data", {})
    for phase, now in sizes.items():
        before = sizes_before.get(phase, now)
        if before == now:
            continue

        samples = format_count(before, "sample")
        message = (
            f"{phase} had {samples} when checkpoint '{loaded.name}' was made, and has {now:,} now"
        )
        if phase == "train" and position.phase_iteration > 0:
            if position.offset >= now:
                raise CheckpointError(
                    f"{message} within an epoch, after {position.offset:,} of them; restore the data, or start a"
                    " new run from a checkpoint at the end of an epoch"
                )
            message += "; the rest of this epoch may repeat or miss some"
        if state.is_master:
            state.show(message)
