"""The model's graph, read back with TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from hooks import Hook, State
from hooks.logs.tensorboard import FOLDER, TensorBoard, add_graph
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from tests.tasks import Points, experiment, numbers


def nodes(folder: Path) -> set[str]:
    """The names of a stored graph's nodes."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {node.name for node in events.Graph().node}


def trained(folder: Path, hooks: dict[str, Hook]) -> nn.Module:
    loop = Loop(
        Points(batch_norm=True, dropout=0.5, noisy=True), experiment(epochs=1), hooks, RunContext(artifacts=folder)
    )
    list(loop.run())
    return loop.state.module


def test_graph_has_the_layers_of_the_model_and_training_is_unchanged(tmp_path: Path) -> None:
    drawn, plain = trained(tmp_path, {"tensorboard": TensorBoard(graph=True)}), trained(tmp_path / "plain", {})
    names = nodes(tmp_path / FOLDER)
    for layer in ("Linear[0]", "BatchNorm1d[1]", "ReLU[2]", "Linear[4]"):
        assert any(name.startswith(f"Forward/Sequential[model]/{layer}/") for name in names), (
            f"{layer} is missing in {sorted(names)}"
        )
    assert numbers(drawn) == numbers(plain)


def test_batches_may_be_nested_and_hold_other_things(tmp_path: Path) -> None:
    batch = {"views": [torch.ones(2, 3), torch.zeros(2, 3)], "names": ["a", "b"]}
    state = State(
        module=nn.Linear(3, 1),
        fresh_batches=lambda phase: iter([batch]),
        forward=lambda model, batch: {
            "first": model(batch["views"][0]),
            "second": (model(batch["views"][1]), batch["names"]),
        },
    )
    with SummaryWriter(str(tmp_path)) as writer:
        add_graph(writer, state)
    assert any("Linear" in name for name in nodes(tmp_path))
