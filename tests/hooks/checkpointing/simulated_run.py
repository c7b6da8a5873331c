"""A simulated run with checkpoint hooks, on a store that records its calls."""

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from hooks import State
from hooks.checkpointing.checkpoint import Checkpoint
from tests.hooks.phases import run_phase


class Store:
    """A run's checkpoints in miniature: deletes what its owners gave up, and records every call in
    order."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.stored: list[str] = []
        self.states: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, list[str]] = {}
        self.labels: dict[str, str] = {}

    def save(self, name: str, states: dict[str, Any]) -> None:
        self.log.append(("save", name))
        self.stored = [*(known for known in self.stored if known != name), name]
        self.states[name] = copy.deepcopy(states)

    def retain(self, owner: str, names: Sequence[str]) -> None:
        assert set(names) <= set(self.stored), (
            f"{owner} wants {names}, there are only {self.stored}"
        )
        given_up = set(self.owners.get(owner, [])) - set(names)
        self.owners[owner] = list(names)
        wanted = set(chain.from_iterable(self.owners.values()))
        for name in sorted(given_up - wanted):
            self.log.append(("delete", name))
            self.stored = [known for known in self.stored if known != name]

    def mark(self, name: str, *labels: str, metric: str = "") -> None:
        assert name in self.stored
        self.log.extend(("mark", label, name) for label in labels)
        self.labels.update(dict.fromkeys(labels, name))

    def publish(
        self, name: str, parts: Mapping[str, str], folder: str, config: Mapping[str, Any]
    ) -> str:
        assert name in self.stored
        self.log.append(("publish", name, dict(parts)))
        return f"{folder}/{name}.pt"

    def find_evaluated_weights(self, name: str) -> str:
        return "model"

    def list_names(self) -> list[str]:
        return list(self.stored)

    def did(self, verb: str) -> list[str]:
        """The names of all calls of one kind."""
        return [call[-1] if verb != "publish" else call[1] for call in self.log if call[0] == verb]


class SimulatedRun:
    """A run with one or more checkpoint hooks, saving where the loop does: once, after the hooks of
    an event."""

    def __init__(self, *hooks: Checkpoint, store: Store | None = None, **fields: Any) -> None:
        self.hooks = hooks
        self.store = store or Store()
        self.state = State(checkpoints=self.store, **fields)
        for index, hook in enumerate(hooks):
            hook.name = f"checkpoint{index or ''}"

    def restore(self, name: str, copied_from: str | None = None) -> None:
        for hook in self.hooks:
            hook.load_state_dict(copy.deepcopy(self.store.states[name][hook.name]))
            checkpoint = {"model": {}, "name": name, "copied_from": copied_from}
            hook.on_load(self.state, checkpoint)
            hook.on_start(self.state)

    def save_if_requested(self) -> None:
        state = self.state
        if not state.checkpoint_reasons:
            return
        state.checkpoint_reasons.clear()
        name = f"epoch-{state.epoch:04d}" if state.epoch_completed else f"step-{state.step:08d}"
        self.store.save(name, {hook.name: hook.state_dict() for hook in self.hooks})
        for hook in self.hooks:
            hook.on_save(state, {})
            hook.on_saved(state, f"s3://bucket/run/checkpoints/{name}")

    def phase(
        self, phase: str, iterations: int, length: int | None = None, **metrics: float
    ) -> None:
        first, *others = self.hooks
        assert not others or iterations == 0
        run_phase(
            first,
            self.state,
            phase,
            [{}] * iterations,
            length=length,
            metrics=metrics,
            step_end=self._step_end,
        )
        self.save_if_requested()

    def _step_end(self) -> None:
        if self.state.phase_iteration < self.state.phase_length:
            self.save_if_requested()

    def epoch(self, accuracy: float | None = None, **metrics: float) -> None:
        """One epoch of two steps, and its validation."""
        self.phase("train", 2, **{"train/loss": 1.0})
        if accuracy is not None:
            metrics["val/accuracy"] = accuracy
        if metrics:
            self.phase("val", 1, **metrics)


def simulate(
    hook: Checkpoint, *epochs: float | dict[str, float] | None, **fields: Any
) -> SimulatedRun:
    """Epochs of two steps, each with the accuracy or the metrics of its validation, if there is
    one."""
    run = SimulatedRun(hook, **fields)
    for metrics in epochs:
        if metrics is None:
            metrics = {}
        elif not isinstance(metrics, dict):
            metrics = {"val/accuracy": metrics}
        run.epoch(**metrics)
    return run


def val(name: str, *values: float) -> list[dict[str, float]]:
    """An epoch for each value of a metric of val."""
    return [{f"val/{name}": value} for value in values]


def names(*epochs: int) -> list[str]:
    return [f"epoch-{epoch:04d}" for epoch in epochs]
