"""The placement group of a run's Ray Train job, whose id is in the run's folder, so that the driver
can free it."""

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from orchestrator.disk.run_folder import RunFolder

_FILE = ".ray_placement_group"


def record_placement_group(run: RunFolder, group: PlacementGroup) -> None:
    run.storage.write(_FILE, group.id.hex())


def find_placement_group(run: RunFolder) -> PlacementGroup | None:
    """Return the group of the run's job; None before the job's workers start."""
    if not run.storage.exists(_FILE):
        return None
    return PlacementGroup(ray.PlacementGroupID.from_hex(run.storage.read(_FILE).decode()))


def remove_placement_group_of(run: RunFolder) -> None:
    """Free the resources of a job that has ended or was killed; Ray may hold them until the sweep's
    driver ends."""
    group = find_placement_group(run)
    if group:
        remove_placement_group(group)
        run.storage.delete(_FILE)
