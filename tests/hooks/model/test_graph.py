"""The graph of a model that TensorBoard reads."""

from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from hooks import State
from hooks.model.graph import add_graph
from hooks.private_torch import compile_in_place


def nodes(folder: Path) -> set[str]:
    """The names of a stored graph's nodes."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {node.name for node in events.Graph().node}


@pytest.mark.parametrize("compiled", [False, True])
def test_batches_may_be_nested_and_hold_other_things(compiled: bool, tmp_path: Path) -> None:
    module = nn.Linear(3, 1)
    if compiled:
        compile_in_place(module)
    batch = {"views": [torch.ones(2, 3), torch.zeros(2, 3)], "names": ["a", "b"]}
    state = State(
        module=module,
        config={"compile": compiled},
        fresh_batches=lambda phase: iter([batch]),
        forward=lambda model, batch: {
            "first": model(batch["views"][0]),
            "second": (model(batch["views"][1]), batch["names"]),
        },
    )
    with SummaryWriter(str(tmp_path)) as writer:
        add_graph(writer, state)
    assert any("Linear" in name for name in nodes(tmp_path))
