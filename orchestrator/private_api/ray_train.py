"""Ray Train: its extra actors, and its wrapping of failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def without_extra_actors(trainer: Any) -> Any:
    """Return a class of trainers without actors for datasets and placement groups.

    The loop has its own data, and a Ray that ends with its run needs no cleaning up. Each actor is a process, which
    takes seconds to start.
    """
    from ray.train.v2._internal.callbacks import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

    class LeanTrainer(trainer):
        def _create_default_callbacks(self) -> list[Any]:
            unneeded = (DatasetsCallback, PlacementGroupCleanerCallback)
            return [callback for callback in super()._create_default_callbacks() if not isinstance(callback, unneeded)]

    return LeanTrainer


def unwrap(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that Ray has wrapped in it."""
    inner: Any = error
    while isinstance(inner, BaseException):
        yield inner
        inner = next(
            (cause for name in ("_base_exc", "cause", "controller_failure") if (cause := getattr(inner, name, None))),
            None,
        )
