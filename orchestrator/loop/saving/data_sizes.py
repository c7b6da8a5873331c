"""The numbers of samples when a checkpoint was made, and now. Used in workers."""

from collections.abc import Iterator, Mapping

from orchestrator.errors import CheckpointError
from orchestrator.loop.saving.contents import LoadedCheckpoint
from orchestrator.units import format_count


def check_position(loaded: LoadedCheckpoint, sizes: Mapping[str, int]) -> None:
    """Raise CheckpointError if an epoch is to continue behind the last sample of changed data.

    Args:
        loaded: The checkpoint.
        sizes: Number of samples now, by phase.
    """
    before = loaded.manifest.get("data", {}).get("train")
    now = sizes.get("train", before)
    offset = loaded.position.offset
    if before == now or not _is_within_epoch(loaded) or offset < now:
        return
    raise CheckpointError(
        f"train has {format_count(now, 'sample')} now, but checkpoint '{loaded.name}' was made after"
        f" {offset:,} of {before:,} in its epoch; restore the data, or start a new run from a checkpoint at"
        " the end of an epoch"
    )


def describe_changed_sizes(loaded: LoadedCheckpoint, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each phase whose number of samples has changed since a checkpoint.

    Args:
        loaded: The checkpoint.
        sizes: Number of samples now, by phase.
    """
    sizes_before = loaded.manifest.get("data", {})
    for phase, now in sizes.items():
        before = sizes_before.get(phase, now)
        if before == now:
            continue
        change = (
            f"{phase} had {format_count(before, 'sample')} when checkpoint '{loaded.name}' was made, and has"
            f" {now:,} now"
        )
        if phase == "train" and _is_within_epoch(loaded):
            change += "; the rest of this epoch may repeat or miss some"
        yield change


def _is_within_epoch(loaded: LoadedCheckpoint) -> bool:
    return loaded.position.phase_iteration > 0
