"""The check of the setting `assigned_views`."""

from collections.abc import Sequence

from hooks.counts import format_count
from hooks.errors import SettingError


def check_assigned_views(assigned_views: Sequence[int], count: int) -> None:
    """Raise SettingError for an assigned view that a batch of `count` views does not have."""
    last = max(assigned_views)
    if last >= count:
        raise SettingError(
            f"assigned_views: a batch has {format_count(count, 'view')}, counted from 0,"
            f" and no view {last}"
        )
