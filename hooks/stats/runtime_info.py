"""What a run is and how far it has come, in one place."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import torch

from hooks.hook import Hook, Priority
from hooks.state import State


@dataclass
class RuntimeInfo(Hook):
    """Keeps in `state.info` what a run is and how far it has come; in the run's `run.json` when it is over.

    Every rank keeps its own; no communication. `experiment`, `seed`, `versions`, `world_size`, `max_epochs` and
    `max_steps`; `data`: for each phase the `samples` of the dataset, this rank's `batches` in it, and the `classes`
    where the dataset names them (`classes`, or MMEngine's `metainfo`); `phase` (null between phases), `epoch`,
    `iteration`, `step` and `samples` completed; `learning_rates` of every parameter group; `metrics`: the newest value
    of each. All of it is as of the last beginning or end of a phase, or of a failure: within a phase the state itself
    knows, and nothing is done. Source: MMEngine RuntimeInfoHook, which keeps the first group's rate alone and waits for
    the GPU at each iteration.
    """

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def on_start(self, state: State) -> None:
        state.info.update(
            experiment=state.config.get("name", state.name),
            seed=state.config.get("seed"),
            versions=_versions(),
            world_size=state.world_size,
            max_epochs=state.max_epochs,
            max_steps=state.max_steps,
            data={phase: _described(loader) for phase, loader in state.loaders.items()},
            metrics=dict(state.metrics),
        )
        _update(state, None)

    def on_phase_start(self, state: State) -> None:
        _update(state, state.phase)

    def on_phase_end(self, state: State) -> None:
        state.info["metrics"] = {**state.info["metrics"], **state.metrics}
        _update(state, None)

    def on_exception(self, state: State, error: BaseException) -> None:
        _update(state, state.info.get("phase"))


def _update(state: State, phase: str | None) -> None:
    state.info.update(
        phase=phase,
        epoch=state.epoch,
        iteration=state.iteration,
        step=state.step,
        samples=state.samples,
        learning_rates=[
            float(group["lr"]) for optimizer in state.optimizers.values() for group in optimizer.param_groups
        ],
    )


def _versions() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
    }


def _described(loader: Any) -> dict[str, Any]:
    """What a loader and its dataset say of themselves; a part of a dataset has the classes of the whole."""
    described: dict[str, Any] = {}
    dataset: Any = getattr(loader, "dataset", None)
    with suppress(TypeError):
        described["samples"] = len(dataset)
    with suppress(TypeError):  # a loader of a stream has a length that raises
        described["batches"] = len(loader)
    classes = _classes(dataset)
    if classes:
        described["classes"] = classes
    return described


def _classes(dataset: Any) -> list[str]:
    while dataset is not None:
        metainfo = getattr(dataset, "metainfo", None) or {}
        classes: Iterable[Any] | None = getattr(dataset, "classes", None) or metainfo.get("classes")
        if classes is not None:
            return [str(name) for name in classes]
        dataset = getattr(dataset, "dataset", None)
    return []
