"""The checkpoints from which runs that share a training continue together."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hooks.position import Position
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.engines.assigned_run import AssignedRun
from orchestrator.loop.sharing.failed_run import call_for_each_run
from orchestrator.loop.world import World

_log = logging.getLogger("hookyard")


def choose_common_checkpoints(runs: Sequence[AssignedRun], world: World) -> None:
    """Resume all runs from the newest position where all have a checkpoint, or start all from
    scratch; collective. A single run has nothing to choose."""
    stores = [run.store for run in runs]
    if len(runs) == 1 or _are_at_same_position(stores, world):
        return
    common: list[str] | None = world.broadcast(partial(_find_newest_common, stores))
    if common is None:
        _start_from_scratch(runs, world)
        return
    for run, name in zip(runs, common, strict=True):
        checkpoint = run.store.get_path(name)
        run.assignment = replace(run.assignment, checkpoint=checkpoint)


def _are_at_same_position(stores: Sequence[CheckpointStore], world: World) -> bool:
    """Return whether the newest checkpoints of all runs have the same position, or none has one;
    collective."""
    positions = call_for_each_run(partial(_find_newest_position, world), stores)
    return len({*positions}) == 1


def _find_newest_position(world: World, store: CheckpointStore) -> Position | None:
    """Return the position of a run's newest checkpoint; None if it has none; collective."""
    name = store.find_latest(world).name
    return store.read_position(name) if name else None


def _start_from_scratch(runs: Sequence[AssignedRun], world: World) -> None:
    """Delete all checkpoints; collective."""
    if world.is_master:
        names = ", ".join(run.folder.name for run in runs)
        _log.warning(
            "%s share a training run but have no common checkpoint; they start from scratch", names
        )
    call_for_each_run(world.broadcast, [run.store.clear for run in runs])


def _find_newest_common(stores: Sequence[CheckpointStore]) -> list[str] | None:
    """Return each store's checkpoint at the newest position that all have in common; None if there
    is none."""
    by_position = call_for_each_run(_list_by_position, stores)
    common = set.intersection(*map(set, by_position))
    if not common:
        return None
    newest = max(common)
    return [names[newest] for names in by_position]


def _list_by_position(store: CheckpointStore) -> dict[Position, str]:
    return {store.read_position(name): name for name in store.list_names()}
