"""Training in miniature: fires the events of optimizer steps as the loop does."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hooks import Hook, Plan, State


def small_model(seed: int = 0) -> nn.Module:
    """A model with parameters, a BatchNorm and its buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def batches(count: int, size: int = 8, seed: int = 1) -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 4, generator=generator) * 2 + 1,) for _ in range(count)]


def new_state(module: nn.Module, **fields: Any) -> State:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return State(
        **{"model": module, "module": module, "optimizer": optimizer, "phase": "train", **fields}
    )


def train(state: State, hooks: Mapping[str, Hook], data: Sequence[Any]) -> list[dict[str, Any]]:
    """Trains on each batch of `data`; returns the rows."""
    plan = Plan(hooks)
    rows = []
    optimizer = state.optimizer
    assert optimizer is not None
    for batch in data:
        state.batch = batch
        state.row = {}
        state.output = state.forward(state.model, batch)
        state.loss = state.output.square().mean()
        plan.fire("on_loss", state)
        (state.loss / state.accumulate).backward()
        plan.fire("on_backward", state)
        state.stepped = (state.iteration + 1) % state.accumulate == 0
        if state.stepped:
            _step(state, plan, optimizer)
        state.iteration += 1
        plan.fire("on_step", state)
        rows.append(state.row)
    return rows


def _step(state: State, plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    plan.fire("on_gradients", state)
    if state.skip_reasons:
        state.skip_reasons.clear()
        state.stepped = False
    else:
        optimizer.step()
        plan.fire("on_update", state)
        state.step += 1
    optimizer.zero_grad()
    state.forget_gradients()
