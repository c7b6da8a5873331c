"""Iterations in which several optimizers train in turn, as for a GAN."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from hooks.model.gradients import order_like_model
from orchestrator.errors import TaskError
from orchestrator.loop.model.precision import Precision
from orchestrator.loop.spans.timestamps import UPDATE_TIMES, Timestamps, skip, without_forward
from orchestrator.loop.step.training_runner import TrainingRunner
from orchestrator.loop.step.turn_gradients import TurnGradients
from orchestrator.loop.step.weights import make_zero_loss
from orchestrator.loop.task_errors import check_has_gradient, describe, require_type
from orchestrator.nearest_names import did_you_mean
from orchestrator.user_code.failures import find_source_location

EXPECTED = "turns, each an optimizer's name and its loss"
_END: Any = object()


@dataclass(frozen=True, eq=False)
class Player:
    """An optimizer that takes turns, and the parameters that it trains."""

    name: str
    optimizer: torch.optim.Optimizer
    precision: Precision
    update: Callable[[], Timestamps]
    """Function that steps the optimizer."""
    parameters: list[nn.Parameter]
    gradients: TurnGradients


class _Turns:
    """The turns of a micro-batch that have ended."""

    def __init__(self, start: Any, microbatches: int, *, is_last: bool) -> None:
        self.microbatches = microbatches
        """Number of micro-batches in the step."""
        self.is_last = is_last
        """True for the last of them, in which optimizers step."""
        self.timestamps: list[Timestamps] = []
        """Timestamps of each turn, from its beginning on."""
        self.end = start
        """Timestamp at which the last turn ended, or at which the first begins."""
        self.has_stepped = False
        """True if a turn has stepped its optimizer."""

    def add(self, timestamps: Timestamps, *, has_stepped: bool) -> None:
        self.timestamps.append(timestamps)
        self.end = timestamps[-1]
        self.has_stepped |= has_stepped


class TurnRunner(TrainingRunner):
    """Runner of iterations with turns. Each turn has the events of a single optimizer's iteration.
    Used in workers.

    A turn's backward pass computes gradients only for its optimizer's parameters. Ranks average
    them after the turn's last backward pass of a step, in one message per dtype and device. An
    optimizer steps in its turns of a step's last micro-batch. An optimizer without a turn there
    steps afterwards.
    """

    def _train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one micro-batch per `next`, turn by turn."""
        state = self.state
        players = {name: self._make_player(name) for name in state.several}
        waiting: dict[Player, Tensor] = {}
        """Losses of the players whose last turn was in an earlier micro-batch of the step."""
        fetch = self.stages.make_fetch(batches)
        finish = self.stages.begin_rows(state.epoch, ())
        position = 1
        microbatches = 1
        previous_end = self.clock.restart()
        while True:
            fetch_times = fetch()
            if state.accumulate > 1:
                position, microbatches = self._advance_microbatch(position, microbatches)

            turns = _Turns(fetch_times[-1], microbatches, is_last=position == microbatches)
            for player, loss in self._iterate_turns(players):
                taken = self._run_turn(turns, player, loss)
                if turns.is_last:
                    waiting.pop(player, None)
                else:
                    waiting[player] = taken.detach()
            if turns.is_last:
                self._step_waiting(turns, waiting)
                waiting.clear()
            state.stepped = turns.has_stepped

            if "loss" in state.row:
                count = self.metrics.loss_count
                self.metrics.means.add("loss", state.row["loss"] * count, count)
            previous_end = finish(previous_end, fetch_times, turns.timestamps)
            yield

    def _make_player(self, name: str) -> Player:
        module = self.state.module
        optimizer = self.state.optimizers[name]
        precision = self.precisions[name]
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        ordered = order_like_model(module, trained)
        return Player(
            name,
            optimizer,
            precision,
            self.stages.make_update(optimizer, precision),
            ordered,
            TurnGradients(name, ordered, module, self.task, self.world),
        )

    def _iterate_turns(self, players: Mapping[str, Player]) -> Iterator[tuple[Player, Any]]:
        """Yield the player and the loss of each turn of a batch."""
        method = self.task.turns
        returned = method(self.state.module, self.state.batch)
        turns: Iterator[Any] = iter(require_type(method, returned, Iterable, EXPECTED))
        has_turn = False
        while True:
            with self.precision.autocast():
                turn = next(turns, _END)
            if turn is _END:
                break
            has_turn = True
            yield self._find_player(turn, players), turn[1]
        if not has_turn:
            raise TaskError(
                f"turns() yields nothing for a batch; expected {EXPECTED}{find_source_location(method)}"
            )

    def _run_turn(self, turns: _Turns, player: Player, loss: Any) -> Tensor:
        """Run a turn, from its loss on, and return the loss; update in the last micro-batch of a
        step."""
        state = self.state
        state.begin_turn(player.name)
        forward_times = self._take_loss(player, loss)
        backward_times = self._run_backward(turns, player)
        state.stepped = False
        end = backward_times[-1]
        update_times = player.update() if turns.is_last else skip(UPDATE_TIMES, end)
        times = (*forward_times, *backward_times, *update_times)
        turns.add((turns.end, *times, self.clock.mark()), has_stepped=state.stepped)
        taken = cast(Tensor, state.loss)
        state.end_turn()
        return taken

    def _take_loss(self, player: Player, loss: Any) -> Timestamps:
        """Record the loss of a turn, between the events of its forward pass; return their
        timestamps."""
        mark = self.clock.mark
        t_forward = mark()
        t_on_forward = self.stages.fire("on_forward", t_forward)
        self._record_turn(player, loss)
        t_loss = mark()
        t_on_loss = self.stages.fire("on_loss", t_loss)
        return t_forward, t_on_forward, t_loss, t_on_loss

    def _run_backward(self, turns: _Turns, player: Player) -> Timestamps:
        """Add the gradients of the turn's loss to those of the step; ranks average them in its last
        micro-batch."""
        mark = self.clock.mark
        scaled = self.stages.scale_loss(self.state.loss, turns.microbatches)
        try:
            player.precision.scale(scaled).backward(inputs=player.parameters)
        except RuntimeError:
            self._check_trainable(player, scaled)
            raise
        t_local_backward = mark()
        t_backward = t_local_backward
        if turns.is_last and self.world.world_size > 1:
            player.gradients.average()
            t_backward = mark()
        return t_local_backward, t_backward, self.stages.fire("on_backward", t_backward)

    def _check_trainable(self, player: Player, loss: Tensor) -> None:
        """Raise TaskError if the backward pass has failed because there is nothing to train."""
        method = self.task.turns
        check_has_gradient(method, loss)
        if not player.parameters:
            raise TaskError(
                f"turns() yields a loss for '{player.name}', but all parameters of this optimizer"
                " are frozen; train one of them, or yield no turn while they are frozen"
                f"{find_source_location(method)}"
            ) from None

    def _record_turn(self, player: Player, loss: Any) -> None:
        """Record the loss and the learning rates of a turn."""
        state = self.state
        if not isinstance(loss, Tensor) or loss.ndim:
            loss = self.metrics.sum_terms(self.task.turns, loss)
        state.loss = loss
        column = state.column("loss")
        self.metrics.record_loss(column, loss)
        if state.loss_weight == 0:
            state.loss = make_zero_loss(loss, player.parameters)
        else:
            state.row["loss"] = state.row.get("loss", 0.0) + state.row[column]
        self.stages.record_learning_rates(player.optimizer, f"lr_{player.name}")

    def _step_waiting(self, turns: _Turns, waiting: Mapping[Player, Tensor]) -> None:
        """Step the optimizers that had turns only in earlier micro-batches of the step."""
        state = self.state
        for player, loss in waiting.items():
            state.begin_turn(player.name)
            state.loss = loss
            start = turns.end
            if self.world.world_size > 1:
                player.gradients.average()
            t_backward = self.clock.mark()
            backward_times = (start, t_backward, t_backward)
            update_times = player.update()
            times = without_forward(start, backward_times, update_times, self.clock.mark())
            turns.add(times, has_stepped=state.stepped)
            state.end_turn()

    def _find_player(self, turn: Any, players: Mapping[str, Player]) -> Player:
        """Return the player of a turn; raises TaskError if there is none."""
        if not isinstance(turn, tuple) or len(turn) != 2:
            raise TaskError(
                f"turns() yields {describe(turn)}; expected {EXPECTED}{find_source_location(self.task.turns)}"
            )
        name = turn[0]
        if isinstance(name, str) and name in players:
            return players[name]
        hint = did_you_mean(str(name), players)
        suggestion = f" ({hint})" if hint else ""
        raise TaskError(
            f"turns() yields {name!r}, but `optimizers` has {', '.join(players)}{suggestion}"
            f"{find_source_location(self.task.turns)}"
        )
