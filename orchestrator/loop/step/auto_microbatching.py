"""Automatic microbatching: a batch that does not fit in memory is computed in pieces."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hooks.distributed import collectives
from hooks.model.layers import BatchNorm
from orchestrator.errors import RunError, TaskError
from orchestrator.loop.step.batch_pieces import count_rows, split_batch
from orchestrator.loop.step.iterations import IterationRunner
from orchestrator.loop.step.stages import make_clear_gradients
from orchestrator.loop.step.weights import weigh
from orchestrator.loop.task_errors import check_has_gradient
from orchestrator.loop.timestamps import (
    BACKWARD_TIMES,
    FORWARD_TIMES,
    UPDATE_TIMES,
    Timestamps,
    skip,
)
from orchestrator.user_code import find_source_location

_ELEMENTS_PER_EXCHANGE = 2**24
"""Number of gradient elements that ranks average in one message."""
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Names in torch's plain RuntimeErrors about failed allocations, which have no type of their own."""


class Piece(NamedTuple):
    """A piece of a batch, and its share of the batch's loss."""

    batch: Any
    samples: int
    share: float
    loss_weight: float | None = None
    """Its weight, if the task has weights."""


class MicrobatchRunner(IterationRunner):
    """Runner of iterations that repeat a batch in twice as many pieces when memory runs out.

    The pieces' gradients add up to those of the batch. Ranks average gradients after their backward
    passes, not during them as DDP does: a rank that runs out of memory would leave the others
    waiting. All use the same number of pieces.
    """

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Make one optimizer step per `next`."""
        state = self.state
        mark = self.clock.mark
        on_backward = self.plan.calls["on_backward"]
        optimizer = self._optimizer
        clear_gradients = make_clear_gradients(optimizer)
        fetch = self._make_fetch(batches)
        update = self._make_update(optimizer, self.precision)
        finish = self._begin_rows(state.epoch, ())
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            batch = Piece(state.batch, state.batch_size, 1.0, state.loss_weight)
            parts = self._compute(batch, fetch_times[-1], clear_gradients)
            self._set_batch(batch)
            start = parts[-1][-1]
            self._average_gradients()
            state.forget_gradients()
            t_backward = t_on_backward = mark()
            if on_backward:
                self.plan.fire("on_backward", state)
                t_on_backward = mark()
            self._record_learning_rates(optimizer)
            before = (start, *skip(FORWARD_TIMES, start), start)
            parts.append((*before, t_backward, t_on_backward, *update(), mark()))
            previous_end = finish(previous_end, fetch_times, parts)
            yield

    def _set_batch(self, piece: Piece) -> None:
        state = self.state
        state.batch = piece.batch
        state.batch_size = piece.samples
        state.loss_weight = piece.loss_weight

    def _compute(
        self, batch: Piece, start: Any, clear_gradients: Callable[[], None]
    ) -> list[Timestamps]:
        """Compute a batch's gradients, in twice as many pieces each time that memory runs out.

        It may run out on any rank. Returns the timestamps of each piece.
        """
        state = self.state
        while True:
            means = self.metrics.means.copy()
            row = dict(state.row)
            parts: list[Timestamps] = []
            reason = self._try_to_compute(batch, start, parts)
            has_single_rows = count_rows(batch.batch) <= self.microbatches
            rank, cannot_split = self._agree_on_failure(reason is not None, has_single_rows)
            if rank is None:
                state.row["microbatches"] = len(parts)
                return parts

            self.metrics.means = means
            state.row = row
            state.output = None
            state.loss = None
            clear_gradients()
            whose = "" if self.world.world_size == 1 else f" on rank {rank}"
            if cannot_split:
                raise RunError(
                    f"out of memory{whose}, even with one row at a time: {reason or 'see that rank'}"
                )
            if state.device.type == "cuda":
                torch.cuda.empty_cache()
            self.microbatches *= 2
            self._show(whose)

    def _try_to_compute(self, batch: Piece, start: Any, parts: list[Timestamps]) -> str | None:
        """Compute all pieces. Return torch's message if memory ran out."""
        pieces = self._split(batch)
        try:
            for piece in pieces:
                parts.append((start, *self._compute_piece(piece)))
                start = parts[-1][-1]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # Not the error itself, whose frames hold the memory.
            return str(error)
        return None

    def _split(self, batch: Piece) -> list[Piece]:
        """Return the pieces of a batch; raises TaskError if it cannot be cut by samples."""
        if self.microbatches == 1:
            return [batch]

        advice = "Set a smaller batch_size, and accumulate as a number"
        try:
            batches = split_batch(batch.batch, self.microbatches)
        except ValueError as error:
            raise TaskError(
                f"memory ran out, and the batch cannot be cut into pieces: {error}. {advice}"
            ) from None

        sizes = [self.task.batch_size(piece) for piece in batches]
        if sum(sizes) != batch.samples:
            raise TaskError(
                f"accumulate: auto cuts batches along the first dimension, but {batch.samples} samples became pieces of"
                f" {', '.join(map(str, sizes))}. {advice}{find_source_location(self.task.batch_size)}"
            )
        if batch.loss_weight is not None:
            return self._weigh_pieces(batches, sizes, batch.loss_weight)

        shares = [size / batch.samples if batch.samples else 1 / len(sizes) for size in sizes]
        return [Piece(*piece) for piece in zip(batches, sizes, shares, strict=True)]

    def _weigh_pieces(
        self, batches: Sequence[Any], sizes: Sequence[int], total: float
    ) -> list[Piece]:
        """Return the pieces with the weights of their losses.

        Raises TaskError unless they add up to `total`, the batch's.
        """
        assert self.weighed is not None
        on_host = split_batch(self.weighed.batch, self.microbatches)
        weights = [weigh(self.task, piece) for piece in on_host]
        if not math.isclose(sum(weights), total, rel_tol=1e-6):
            raise TaskError(
                f"accumulate: auto cuts batches into pieces, but the weight {total:g} of a batch became"
                f" {', '.join(f'{weight:g}' for weight in weights)}; let weight() count only what its batch contains"
                f"{find_source_location(self.task.weight)}"
            )
        shares = [weight / total if total else 0.0 for weight in weights]
        return [Piece(*piece) for piece in zip(batches, sizes, shares, weights, strict=True)]

    def _compute_piece(self, piece: Piece) -> Timestamps:
        """Compute a piece's gradients, with its share of the batch's loss; return timestamps."""
        row = self.state.row
        self._set_batch(piece)
        before = dict(row)
        forward_times = self._make_forward(self.state.model)()
        for name in ("loss", *self.metrics.loss_terms):
            # A piece of weight 0 has no loss.
            if name in row:
                row[name] = before.get(name, 0.0) + row[name] * piece.share

        loss = cast(Tensor, self.state.loss)
        if self.weighed is not None:
            loss = self.weighed.scale(loss)
        elif piece.share != 1:
            loss = loss * piece.share
        try:
            self.precision.scale(loss).backward()
        except RuntimeError:
            check_has_gradient(self.task.loss, loss)
            raise
        end = self.clock.mark()
        return *forward_times, *skip(BACKWARD_TIMES, end), *skip(UPDATE_TIMES, end), end

    def _agree_on_failure(self, has_failed: bool, cannot_split: bool) -> tuple[int | None, bool]:
        """Return a rank that ran out of memory, if any, and whether its batch cannot be split.

        If none did, a parameter that has a gradient on some ranks gets a gradient of zeros on the
        others. Collective.
        """
        parameters = self.state.module.parameters()
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        existing = [float(parameter.grad is not None) for parameter in trained]
        failed_rank = self.world.rank + 1.0 if has_failed else 0.0
        rank, is_final, *anywhere = self.world.maximum(
            [failed_rank, float(has_failed and cannot_split), *existing]
        )
        if rank:
            return int(rank) - 1, bool(is_final)
        for parameter, has_gradient in zip(trained, anywhere, strict=True):
            if has_gradient and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return None, False

    def _average_gradients(self) -> None:
        """Average gradients across all ranks; collective.

        This copies them, so each message holds a limited number of elements.
        """
        if self.world.world_size == 1:
            return
        message: list[Tensor] = []
        elements = 0
        for parameter in self.state.module.parameters():
            if parameter.grad is None:
                continue
            message.append(parameter.grad)
            elements += parameter.grad.numel()
            if elements >= _ELEMENTS_PER_EXCHANGE:
                collectives.average(message)
                message = []
                elements = 0
        collectives.average(message)

    def _show(self, whose: str) -> None:
        if not self.state.is_master:
            return
        note = ""
        for part in self.state.module.modules():
            if isinstance(part, BatchNorm) and part.training:
                note = "; BatchNorm then normalizes each micro-batch, which changes the numbers"
        self.state.show(
            f"out of memory{whose}: from iteration {self.state.iteration + 1} on, each batch is split into"
            f" {self.microbatches} micro-batches{note}"
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    message = str(error)
    return any(name in message for name in _OUT_OF_MEMORY)
