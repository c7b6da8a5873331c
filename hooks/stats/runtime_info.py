"""Facts about a run."""

import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy
import torch

from hooks.hook import Hook, Priority
from hooks.state import State


@dataclass
class RuntimeInfo(Hook):
    """Keep facts about a run and its position in `state.info`, and in the run's `run.json` at its
    end.

    `experiment`, `seed`, `versions`, `world_size`, `max_epochs` and `max_steps`; `data`: for each
    phase the `samples` of the dataset, this rank's `batches`, and the `classes` that the dataset
    names; `phase` (null between phases), `epoch`, `iteration`, `step` and `samples` completed;
    `learning_rates` of all parameter groups; `metrics`: the newest values. Updated when a phase
    begins or ends, and at a failure. Source: MMEngine RuntimeInfoHook.
    """

    observes: ClassVar[bool] = True
    priority: ClassVar[Priority | int] = Priority.VERY_HIGH

    def on_start(self, state: State) -> None:
        state.info.update(
            experiment=state.config.get("name", state.name),
            seed=state.config.get("seed"),
            versions={
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": numpy.__version__,
                "cuda": torch.version.cuda,
            },
            world_size=state.world_size,
            max_epochs=state.max_epochs,
            max_steps=state.max_steps,
            data={phase: _describe(loader) for phase, loader in state.loaders.items()},
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
    groups = chain.from_iterable(optimizer.param_groups for optimizer in state.optimizers.values())
    state.info.update(
        phase=phase,
        epoch=state.epoch,
        iteration=state.iteration,
        step=state.step,
        samples=state.samples,
        learning_rates=[float(group["lr"]) for group in groups],
    )


def _describe(loader: Any) -> dict[str, Any]:
    described: dict[str, Any] = {}
    dataset: Any = getattr(loader, "dataset", None)
    with suppress(TypeError):
        described["samples"] = len(dataset)
    with suppress(TypeError):  # the loader of an iterable dataset may have no length
        described["batches"] = len(loader)
    classes = _list_classes(dataset)
    if classes:
        described["classes"] = classes
    return described


def _list_classes(dataset: Any) -> list[str]:
    while dataset is not None:
        metainfo = getattr(dataset, "metainfo", None) or {}
        classes: Iterable[Any] | None = getattr(dataset, "classes", None) or metainfo.get("classes")
        if classes is not None:
            return [str(name) for name in classes]
        dataset = getattr(dataset, "dataset", None)
    return []
