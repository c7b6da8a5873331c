"""The state of a loop, ready for any event."""

from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from hooks.state import State
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.task_errors import check_has_gradient
from orchestrator.task import Task
from orchestrator.testing.small_loop import KeepingRecorder, Screen, make_small_loop
from orchestrator.testing.small_task import SmallTask


def ready_state(task: Task | None = None, **fields: Any) -> State:
    """Return the state of `on_gradients` in the first iteration, with model, gradients, batch, output
    and loss. Any event can be called with it.

    Args:
        task: The task; by default a small one.
        **fields: Values for fields of the state, such as `step=5`.

    Returns:
        The state.

    Example:
        ```python
        state = ready_state()
        GradientClip(max_norm=1.0).on_gradients(state)
        state.row["grad_norm"]
        ```
    """
    task = task or SmallTask()
    loop = make_small_loop(task, {}, {}, RunContext(recorder=KeepingRecorder()))
    state = loop.state
    state.phase = "train"
    state.phase_length = len(state.loaders["train"])
    state.batch = next(iter(state.fresh_batches("train")))
    state.batch_size = state.samples_in(state.batch)
    state.output = state.forward(state.model, state.batch)
    state.loss = _compute_loss(task, state)
    state.display = Screen()
    for name, value in fields.items():
        setattr(state, name, value)
    return state


def _compute_loss(task: Task, state: State) -> Tensor:
    """Return the loss of the batch, after its backward pass."""
    losses: Any = task.loss(state.output, state.batch)
    loss: Tensor = losses if isinstance(losses, Tensor) else reduce(add, losses.values())
    try:
        loss.backward()
    except RuntimeError:
        check_has_gradient(task.loss, loss)
        raise
    return loss
