"""Automatic microbatching: a batch that does not fit in memory is computed in pieces."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from hooks.distributed import collectives
from hooks.model.layers import BatchNorm
from orchestrator.errors import RunError
from orchestrator.loop.spans.timestamps import Timestamps, end_after_forward, without_forward
from orchestrator.loop.step.batch_pieces import count_rows
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.loop.step.training_stages import make_clear_gradients
from orchestrator.loop.step.weighed_pieces import Piece, split_into_pieces

_ELEMENTS_PER_EXCHANGE = 2**24
"""Number of gradient elements that ranks average in one message."""
_OUT_OF_MEMORY = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Names in torch's plain RuntimeErrors about failed allocations, which have no type of their own."""


class _Computed(NamedTuple):
    """Results of a rank for a batch."""

    timestamps: list[Timestamps]
    """Timestamps of each piece."""
    error: str | None = None
    """Torch's message if memory ran out."""


class _Agreement(NamedTuple):
    """Results of all ranks for a batch, once each has computed it or run out of memory."""

    failed_rank: int | None
    """A rank that ran out of memory; None if none did."""
    cannot_split: bool
    """True if a rank ran out of memory with one row at a time."""
    has_gradient: Sequence[float]
    """For each trained parameter, 1 if it has a gradient on any rank, otherwise 0."""


class MicrobatchRunner(TrainingRunner):
    """Runner of iterations that repeat a batch in twice as many pieces when memory runs out.

    The pieces' gradients add up to those of the batch. Ranks average gradients after their backward
    passes, not during them as DDP does: a rank that runs out of memory would leave the others
    waiting. All use the same number of pieces.
    """

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Make one optimizer step per `next`."""
        state = self.state
        mark = self.clock.mark
        optimizer = self._optimizer
        clear_gradients = make_clear_gradients(optimizer)
        fetch = self.stages.make_fetch(batches)
        update = self.stages.make_update(optimizer, self.precision)
        finish = self.stages.begin_rows(state.epoch, ())
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            batch = Piece(state.batch, state.batch_size, loss_weight=state.loss_weight)
            parts = self._compute(batch, fetch_times[-1], clear_gradients)
            self._set_batch(batch)

            start = parts[-1][-1]
            self._average_gradients()
            state.forget_gradients()
            t_backward = mark()
            backward_times = (start, t_backward, self.stages.fire("on_backward", t_backward))

            self.stages.record_learning_rates(optimizer)
            parts.append(without_forward(start, backward_times, update(), mark()))
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
            computed = self._compute_pieces(batch, start)
            trained = self._list_trained()
            agreement = self._exchange_flags(batch, trained, has_failed=computed.error is not None)
            if agreement.failed_rank is None:
                _fill_missing_gradients(trained, agreement.has_gradient)
                state.row["microbatches"] = len(computed.timestamps)
                return computed.timestamps

            self.metrics.means = means
            state.row = row
            state.output = None
            state.loss = None
            clear_gradients()
            self._split_further(agreement, computed.error)

    def _compute_pieces(self, batch: Piece, start: Any) -> _Computed:
        """Compute all pieces of a batch, unless memory runs out."""
        timestamps: list[Timestamps] = []
        weighed = self.stages.weighed
        on_host = None if weighed is None else weighed.batch
        pieces = split_into_pieces(self.task, batch, self.microbatches, on_host)
        try:
            for piece in pieces:
                timestamps.append((start, *self._compute_piece(piece)))
                start = timestamps[-1][-1]
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            # Not the error itself, whose frames hold the memory.
            return _Computed(timestamps, str(error))
        return _Computed(timestamps)

    def _split_further(self, agreement: _Agreement, error: str | None) -> None:
        """Use twice as many pieces from now on. Raises RunError if a batch has no more rows."""
        whose = "" if self.world.world_size == 1 else f" on rank {agreement.failed_rank}"
        if agreement.cannot_split:
            raise RunError(
                f"out of memory{whose}, even with one row at a time: {error or 'see that rank'}"
            )
        if self.state.device.type == "cuda":
            torch.cuda.empty_cache()
        self.microbatches *= 2
        self._show_split(whose)

    def _compute_piece(self, piece: Piece) -> Timestamps:
        """Compute a piece's gradients, with its share of the batch's loss; return timestamps."""
        row = self.state.row
        self._set_batch(piece)
        before = dict(row)
        forward = self.stages.make_forward_with_loss()
        forward_times = forward()
        for name in ("loss", *self.metrics.loss_terms):
            # A piece of weight 0 has no loss.
            if name in row:
                row[name] = before.get(name, 0.0) + row[name] * piece.share

        loss = cast(Tensor, self.state.loss)
        weighed = self.stages.weighed
        if weighed is not None:
            loss = weighed.scale(loss)
        elif piece.share != 1:
            loss = loss * piece.share
        self.stages.backpropagate(self.precision.scale(loss))
        return *forward_times, *end_after_forward(self.clock.mark())

    def _list_trained(self) -> list[nn.Parameter]:
        parameters = self.state.module.parameters()
        return [parameter for parameter in parameters if parameter.requires_grad]

    def _exchange_flags(
        self, batch: Piece, trained: Iterable[nn.Parameter], *, has_failed: bool
    ) -> _Agreement:
        """Tell the other ranks whether memory ran out here, and which parameters have a gradient;
        collective."""
        has_single_rows = count_rows(batch.batch) <= self.microbatches
        failed_number = self.world.rank + 1.0 if has_failed else 0.0
        existing = [float(parameter.grad is not None) for parameter in trained]
        highest, is_final, *has_gradient = self.world.maximum(
            [failed_number, float(has_failed and has_single_rows), *existing]
        )
        failed_rank = int(highest) - 1 if highest else None
        return _Agreement(failed_rank, bool(is_final), has_gradient)

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

    def _show_split(self, whose: str) -> None:
        if not self.state.is_master:
            return
        note = ""
        parts = self.state.module.modules()
        if any(isinstance(part, BatchNorm) and part.training for part in parts):
            note = "; BatchNorm then normalizes each micro-batch, which changes the numbers"
        self.state.show(
            f"out of memory{whose}: from iteration {self.state.iteration + 1} on, each batch is split into"
            f" {self.microbatches} micro-batches{note}"
        )


def _fill_missing_gradients(
    parameters: Iterable[nn.Parameter], has_gradient: Iterable[float]
) -> None:
    """Give each parameter that has a gradient on another rank a gradient of zeros here."""
    for parameter, has_one in zip(parameters, has_gradient, strict=True):
        if has_one and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    message = str(error)
    return any(name in message for name in _OUT_OF_MEMORY)
