"""Automatic microbatching: a batch is gone through in as many pieces as fit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, groupby
from typing import Any, cast

import torch

from hooks.parts import coalesced_collectives as coalesced
from hooks.parts.batch_norm_statistics import BatchNorm
from orchestrator.config.python.user_code import source_location
from orchestrator.errors import RunError
from orchestrator.loop.step.iterations import clearing
from orchestrator.loop.step.microbatches import is_out_of_memory, microbatches_of, rows_of
from orchestrator.loop.step.multi_pass import MultiPassIterations

_EXCHANGED_AT_ONCE = 2**24
"""Numbers that are copied together to be exchanged."""

Marks = list[tuple[Any, ...]]
"""The clock's, of each part of an iteration."""


class MicrobatchedIterations(MultiPassIterations):
    """Takes a batch through the model, and where memory runs out begins it again in twice as many pieces, whose
    gradients add up to those of the batch. Worker process.

    Ranks exchange nothing before all of them are through, and agree then whether they are: within a backward pass, as
    DDP exchanges, a rank that runs out would leave the others waiting. All go on with the same number of pieces.
    """

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Trains on a batch at each `next`, and makes an optimizer step."""
        state, optimizer = self.state, self.state.optimizer
        assert optimizer is not None
        clear = clearing(optimizer)
        self._loss_of = self.precision.autocasting(cast(Callable[..., Any], self.task.loss))
        self._begin_rows(state.epoch)
        ended = self.clock.restart()
        while True:
            begun = self._begin(batches)
            batch, samples = state.batch, state.batch_size
            parts = self._through(batch, samples, begun[-1], clear)
            state.batch, state.batch_size = batch, samples
            began = parts[-1][-1]
            self._exchange()
            t_backward = t_gradients = self.clock.mark()
            if self.plan.calls["on_backward"]:
                self.plan.fire("on_backward", state)
                t_gradients = self.clock.mark()
            if self._on_cpu:
                state.row["lr"] = float(optimizer.param_groups[0]["lr"])
            self._record_rates(optimizer)
            updated = self._update(optimizer, self.precision, clear)
            parts.append((*(began,) * 6, t_backward, t_gradients, *updated, self.clock.mark()))
            ended = self._end(ended, begun, parts)
            yield

    def _through(self, batch: Any, samples: int, began: Any, clear: Callable[[], None]) -> Marks:
        """Goes through a batch, in more pieces each time that memory runs out on a rank; raises RunError where there
        can be no more."""
        state, failed = self.state, Marks()
        while True:
            means, row, parts = self.means.copied(), dict(state.row), Marks()
            reason = self._attempt(batch, samples, began, parts)
            rank, is_last = self._agree(reason is not None, rows_of(batch) <= self.microbatches)
            if rank is None:
                state.row["microbatches"] = len(parts)
                return failed + parts
            self.means.become(means)
            state.row, state.output, state.loss = row, None, None
            clear()
            whose = "" if self.world.world_size == 1 else f" on rank {rank}"
            if is_last:
                raise RunError(
                    f"memory runs out{whose}, even over pieces of a batch of one row each:"
                    f" {reason or 'that rank says more'}"
                )
            if state.device.type == "cuda":
                torch.cuda.empty_cache()
            self.microbatches *= 2
            self._tell(whose)
            failed.append((began, *(self.clock.mark(),) * 12))
            began = failed[-1][-1]

    def _attempt(self, batch: Any, samples: int, began: Any, parts: Marks) -> str | None:
        """Goes through all pieces, to their gradients; says why memory ran out where it did."""
        pieces = self._pieces(batch, samples)
        try:
            for piece, size in pieces:
                self.state.batch, self.state.batch_size = piece, size
                parts.append((began, *self._pass(size / samples if len(pieces) > 1 and samples else 1 / len(pieces))))
                began = parts[-1][-1]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return str(error)  # and not the error, in whose frames lies what takes the memory
        return None

    def _pieces(self, batch: Any, samples: int) -> list[tuple[Any, int]]:
        """Pieces and their numbers of samples; raises RunError where the batch cannot be cut, or is cut along something
        else."""
        size_of = self.task.batch_size
        if self.microbatches == 1:
            return [(batch, samples)]
        try:
            pieces = [(piece, size_of(piece)) for piece in microbatches_of(batch, self.microbatches)]
        except ValueError as error:
            raise RunError(
                f"memory ran out, and the batch cannot be cut into pieces: {error}. Write a smaller batch_size, and"
                " accumulate as a number"
            ) from None
        if sum(size for _, size in pieces) != samples:
            raise RunError(
                f"memory ran out, and the batch of {samples} samples is cut into pieces of"
                f" {', '.join(str(size) for _, size in pieces)}: its samples do not lie along the first dimension of"
                f" its tensors. Write a smaller batch_size, and accumulate as a number{source_location(size_of)}"
            )
        return pieces

    def _agree(self, failed: bool, is_last: bool) -> tuple[int | None, bool]:
        """Which rank ran out of memory, if one did, and whether its batch can be cut no further; collective. Where none
        did, what has a gradient on some ranks alone gets one of zeros on the others."""
        trained = [parameter for parameter in self.state.module.parameters() if parameter.requires_grad]
        there = [float(parameter.grad is not None) for parameter in trained]
        rank, can_no_more, *anywhere = self.world.maximum(
            [self.world.rank + 1.0 if failed else 0.0, float(failed and is_last), *there]
        )
        if rank:
            return int(rank) - 1, bool(can_no_more)
        for parameter, has in zip(trained, anywhere, strict=True):
            if has and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return None, False

    def _exchange(self) -> None:
        """Makes gradients the means over all ranks, some at a time, as they are copied for it; collective."""
        if self.world.world_size == 1:
            return
        gradients = [parameter.grad for parameter in self.state.module.parameters() if parameter.grad is not None]
        begins = accumulate(gradient.numel() for gradient in gradients)
        for _, some in groupby(zip(begins, gradients, strict=True), lambda pair: pair[0] // _EXCHANGED_AT_ONCE):
            coalesced.average(gradient for _, gradient in some)

    def _tell(self, whose: str) -> None:
        if not self.state.is_master:
            return
        norms = any(isinstance(part, BatchNorm) and part.training for part in self.state.module.modules())
        others = "; BatchNorm normalizes by pieces then, so that numbers are others" if norms else ""
        self.state.show(
            f"memory ran out{whose}: from iteration {self.state.iteration + 1} on a batch is gone through in"
            f" {self.microbatches} pieces{others}"
        )
