"""Ray Train: trainers without extra actors, and the errors that its own errors wrap."""

from collections.abc import Iterator
from typing import Any

from hooks.errors import walk_errors

_CAUSES = ("_base_exc", "cause", "controller_failure")
"""Attributes of Ray's errors that hold the error that they wrap."""


def without_extra_actors(trainer: Any) -> Any:
    """Return a class of trainers without actors for datasets and placement groups.

    The loop loads its own data, and a local Ray ends with its run. An actor is a process that takes
    seconds to start.
    """
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import (
        PlacementGroupCleanerCallback,
    )

    class LeanTrainer(trainer):
        def _create_default_callbacks(self) -> list[Any]:
            unneeded = (DatasetsCallback, PlacementGroupCleanerCallback)
            return [
                callback
                for callback in super()._create_default_callbacks()
                if not isinstance(callback, unneeded)
            ]

    return LeanTrainer


def unwrap(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that Ray has wrapped in it."""
    return walk_errors(error, _get_wrapped)


def _get_wrapped(error: BaseException) -> BaseException | None:
    causes = (getattr(error, name, None) for name in _CAUSES)
    return next((cause for cause in causes if isinstance(cause, BaseException)), None)
