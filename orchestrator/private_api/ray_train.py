"""Of Ray Train: what it starts beside the workers, and how it wraps their failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def without_extra_actors(trainer: Any) -> Any:
    """A class of trainers that starts no actors for datasets and for cleaning up placement groups.

    The loop brings its own data, and where Ray was started for this run and ends with it nothing is left to clean up;
    each of these actors is a process, and costs a small machine seconds.
    """
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

    class LeanTrainer(trainer):
        def _create_default_callbacks(self) -> list[Any]:
            unneeded = (DatasetsCallback, PlacementGroupCleanerCallback)
            return [callback for callback in super()._create_default_callbacks() if not isinstance(callback, unneeded)]

    return LeanTrainer


def unwrapped(error: BaseException) -> Iterator[BaseException]:
    """An error and those that Ray has wrapped in it."""
    inner: Any = error
    while isinstance(inner, BaseException):
        yield inner
        inner = next(
            (found for name in ("_base_exc", "cause", "controller_failure") if (found := getattr(inner, name, None))),
            None,
        )
