"""Iterations whose step is a CUDA graph: captured once in each phase of training, and repeated by the GPU without the
host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from orchestrator.errors import RunError
from orchestrator.loop.step.iterations import clearing
from orchestrator.loop.step.multi_pass import MultiPassIterations
from orchestrator.loop.step.task_errors import loss_parts
from orchestrator.loop.step.transfer import leaves, with_leaves

WARM_UP = 3
"""Steps before one is captured, in which optimizer, autograd and libraries make what they keep."""

_ON_DEVICE = ("lr", "fused", "capturable")
"""What an optimizer's groups say of where its step is computed."""


class Passed(NamedTuple):
    """What a step leaves; of a captured one, what the next writes over."""

    output: Any
    loss: Tensor
    parts: Mapping[str, Tensor]


Step = Callable[[Any], Passed]


class CapturedStep:
    """A step on batches: the first run as they are, on a stream of their own, then one is captured, and from there on
    it is repeated.

    Each batch is trained on once, in this order. One of another shape than was captured is run as it is; where another
    number of the optimizer than its rates has changed, the step is captured again. Rates are read from a tensor, filled
    before each step. Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs, whole-network capture.
    """

    def __init__(self, step: Step, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._step, self._optimizer, self._device = step, optimizer, device
        self._rates = [torch.zeros((), dtype=torch.float32, device=device) for _ in optimizer.param_groups]
        self._run = self._repeats = self._in_a_row = 0
        self._repeat: Callable[[], None] | None = None
        self._batch: Any = None
        self._passed: Passed | None = None
        self._numbers: list[dict[str, Any]] = []

    def __call__(self, batch: Any) -> Passed:
        """Trains on a batch."""
        for rate, group in zip(self._rates, self._optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self._run < WARM_UP or not (self._batch is None or self._fits(batch)):
            self._run += 1
            with beside_work(self._device), self._for_capture():
                return self._step(batch)
        if self._repeat is None or self._numbers != self._present_numbers():
            self._capture(batch)
        else:
            for place, leaf in zip(leaves(self._batch), leaves(batch), strict=True):
                if isinstance(place, Tensor):
                    place.copy_(leaf, non_blocking=True)
        assert self._repeat is not None
        assert self._passed is not None
        self._repeat()
        self._repeats += 1
        return self._passed

    def _capture(self, batch: Any) -> None:
        """Captures the step; raises RunError where it is captured for each."""
        self._in_a_row = self._in_a_row + 1 if self._repeats == 1 else 0
        if self._in_a_row == 2:
            changed = {
                name
                for now, was in zip(self._present_numbers(), self._numbers, strict=True)
                for name in now
                if now[name] != was.get(name)
            }
            raise RunError(
                f"cuda_graph repeats a step as it was captured, and {', '.join(sorted(changed))} of the optimizer"
                " changes in each; leave cuda_graph out, or what changes it (cycle_momentum: false, where it is a"
                " scheduler)"
            )
        self._repeats = 0
        self._repeat = self._passed = None  # what the graph before holds of memory is free for this one
        self._batch, self._numbers = with_leaves(batch, _own), self._present_numbers()
        with self._for_capture():
            self._passed, self._repeat = captured(lambda: self._step(self._batch))

    def _fits(self, batch: Any) -> bool:
        ours, theirs = [*leaves(self._batch)], [*leaves(batch)]
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))

    def _present_numbers(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for group in self._optimizer.param_groups
        ]

    @contextmanager
    def _for_capture(self) -> Iterator[None]:
        """The optimizer as its step can be captured: all on the device. Outside of a step it is as it was made, for
        schedulers and checkpoints."""
        groups = self._optimizer.param_groups
        before = [{key: group[key] for key in _ON_DEVICE if key in group} for group in groups]
        for group, rate, was in zip(groups, self._rates, before, strict=True):
            group.update({key: rate if key == "lr" else True for key in was})
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*capturable=True.*without CUDA graph capture")
                yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)


def _own(leaf: Any) -> Any:
    """A leaf of a batch for the graph to read from; raises RunError for what is neither a tensor nor a plain value."""
    if isinstance(leaf, Tensor):
        return leaf.clone()
    if leaf is None or isinstance(leaf, str | bytes | int | float):
        return leaf
    raise RunError(
        f"cuda_graph cannot capture a step on a batch with a {type(leaf).__name__}: a graph reads from tensors that"
        " stay where they are"
    )


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether a leaf can take another's place in a graph, which computes nothing from text."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return type(ours) is type(theirs) and (isinstance(ours, str | bytes) or bool(ours == theirs))


@contextmanager
def beside_work(device: torch.device) -> Iterator[None]:
    """On a stream of its own, after what was given to the present one and before what will be: what runs before a
    capture must."""
    present, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    own.wait_stream(present)
    with torch.cuda.stream(own):
        yield
    present.wait_stream(own)


def captured(run: Callable[[], Passed]) -> tuple[Passed, Callable[[], None]]:
    """Captures what a function gives the GPU, without doing it: what it leaves, and what does it. The threads of a
    loader go on meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        passed = run()
    return passed, graph.replay


class CapturedIterations(MultiPassIterations):
    """Takes training batches through a step that is a CUDA graph, with hooks before and behind it. Worker process.

    Captured anew in each phase of training, so that whatever was done to the model between two is in it.
    """

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Trains on a batch at each `next`."""
        state, mark, optimizer = self.state, self.clock.mark, self.state.optimizer
        assert optimizer is not None
        step = CapturedStep(self._whole_step(optimizer), optimizer, state.device)
        self._begin_rows(state.epoch)
        ended = self.clock.restart()
        while True:
            begun = self._begin(batches)
            state.output, state.loss, parts = step(state.batch)
            t_passed = mark()
            self._record_parts(parts)
            state.row["loss"] = loss = state.loss.detach().double()
            self.means.add("loss", loss * state.batch_size, state.batch_size)
            if self._has_metrics:
                self._count_metrics()
            self._record_rates(optimizer)
            state.stepped = True
            t_counted = t_updated = mark()
            if self.plan.calls["on_update"]:
                self.plan.fire("on_update", state)
                t_updated = mark()
            ended = self._end(ended, begun, [(begun[-1], t_passed, t_passed, *[t_counted] * 8, t_updated, mark())])
            yield

    def _whole_step(self, optimizer: torch.optim.Optimizer) -> Step:
        """Forward and backward pass and the optimizer's step. Its gradients are its own: a graph writes them where
        nothing else looks."""
        state, task, clear = self.state, self.task, clearing(optimizer)
        forward, loss_of = state.forward, self.precision.autocasting(task.loss)

        def step(batch: Any) -> Passed:
            clear()
            output = forward(state.model, batch)
            loss: Any = loss_of(output, batch)
            parts = {} if isinstance(loss, Tensor) and not loss.ndim else loss_parts(task.loss, loss)
            total: Tensor = reduce(add, parts.values()) if parts else loss
            total.backward()
            optimizer.step()
            clear()
            return Passed(output, total.detach(), {name: part.detach() for name, part in parts.items()})

        return step
