"""Turns: an iteration in which several optimizers train, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from hooks.parameter_names import listed
from hooks.parts import coalesced_collectives as coalesced
from orchestrator.config.python.user_code import source_location
from orchestrator.errors import RunError, did_you_mean
from orchestrator.loop.step.iterations import clearing
from orchestrator.loop.step.multi_pass import MultiPassIterations
from orchestrator.loop.step.precision import Precision
from orchestrator.loop.step.task_errors import described, of_kind

WANTED = "turns, each an optimizer's name and its loss"


@dataclass
class Player:
    """An optimizer that takes turns, and what it trains."""

    name: str
    optimizer: torch.optim.Optimizer
    precision: Precision
    parameters: list[nn.Parameter] = field(default_factory=list)
    exchanged: tuple[bool, ...] | None = None
    """Which of its parameters had gradients when ranks first exchanged them."""

    def __post_init__(self) -> None:
        self.parameters = [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self.clear = clearing(self.optimizer)


class TurnIterations(MultiPassIterations):
    """Takes batches through the turns of a task: for each what is done for a single optimizer, with its own parameters.

    Worker process. A turn's backward pass reaches the parameters of its optimizer alone, so those of another keep what
    they have. Ranks exchange these gradients after the turn's last backward pass of a step, in one message for each
    kind of tensor. An optimizer is stepped at its turns in a step's last micro-batch, or after them where it has none
    there and had one before.
    """

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Trains on a micro-batch at each `next`, turn by turn; each makes its step where the micro-batch is the last
        of its group."""
        state, task = self.state, self.task
        players = {name: Player(name, optimizer, self.precisions[name]) for name, optimizer in state.optimizers.items()}
        first, waiting = next(iter(players)), dict[str, Tensor]()
        self._begin_rows(state.epoch)
        position, group, ended = 1, 1, self.clock.restart()
        while True:
            begun = self._begin(batches)
            if state.accumulate > 1:
                position, group = self._position_in_step(position, group)
            turns: Iterator[Any] = iter(of_kind(task.turns, task.turns(state.module, state.batch), Iterable, WANTED))
            marks: list[tuple[Any, ...]] = []
            began, stepped = begun[-1], False
            while True:
                with self.precision.autocast():
                    turn = next(turns, None)
                if turn is None:
                    break
                player = self._player(turn, players)
                state.take_turn(player.name, player.parameters)
                marks.append((began, *self._take(player, turn[1], group, is_last=position == group)))
                began, stepped = marks[-1][-1], stepped or state.stepped
                if position < group:
                    waiting[player.name] = cast(Tensor, state.loss).detach()
                else:
                    waiting.pop(player.name, None)
                state.take_turn(first, None)
            if not marks:
                raise RunError(
                    f"turns() yields nothing for a batch, and must yield {WANTED}{source_location(task.turns)}"
                )
            while position == group and waiting:
                player = players[next(iter(waiting))]
                state.take_turn(player.name, player.parameters)
                state.loss = waiting.pop(player.name)
                marks.append(self._step_late(player, began))
                began, stepped = marks[-1][-1], stepped or state.stepped
                state.take_turn(first, None)
            state.stepped = stepped
            self.means.add("loss", state.row["loss"] * state.batch_size, state.batch_size)
            ended = self._end(ended, begun, marks)
            yield

    def _take(self, player: Player, loss: Any, group: int, *, is_last: bool) -> tuple[Any, ...]:
        """A turn, from its loss on: returns the clock's marks, those of a single optimizer's iteration."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        t_forward = t_output = mark()
        if calls["on_forward"]:
            fire("on_forward", state)
            t_output = mark()
        if not isinstance(loss, Tensor) or loss.ndim:
            loss = self._sum_of_parts(self.task.turns, loss)
        state.loss = loss
        value: Any = loss.item() if self._on_cpu else loss.detach().double()
        state.row[state.column("loss")] = value
        state.row["loss"] = state.row.get("loss", 0.0) + value
        self.means.add(state.column("loss"), value * state.batch_size, state.batch_size)
        self._record_turns_rates(player)
        t_loss = t_counted = mark()
        if calls["on_loss"]:
            fire("on_loss", state)
            t_counted = mark()
        assert state.loss is not None
        player.precision.scaled(state.loss if group == 1 else state.loss / group).backward(inputs=player.parameters)
        t_own = t_backward = mark()
        if is_last and state.world_size > 1:
            self._exchange(player)
            t_backward = mark()
        t_gradients = t_backward
        if calls["on_backward"]:
            fire("on_backward", state)
            t_gradients = mark()
        state.stepped = False
        updated = self._update(player.optimizer, player.precision, player.clear) if is_last else (t_gradients,) * 4
        return t_forward, t_output, t_loss, t_counted, t_own, t_backward, t_gradients, *updated, mark()

    def _step_late(self, player: Player, began: Any) -> tuple[Any, ...]:
        """Step an optimizer that had its turns in earlier micro-batches of the step. Return the clock's marks."""
        if self.state.world_size > 1:
            self._exchange(player)
        t_backward = self.clock.mark()
        updated = self._update(player.optimizer, player.precision, player.clear)
        return *[began] * 6, t_backward, t_backward, *updated, self.clock.mark()

    def _player(self, turn: Any, players: dict[str, Player]) -> Player:
        """Whose turn it is; raises RunError where that is nobody."""
        if not isinstance(turn, tuple) or len(turn) != 2:
            raise RunError(
                f"turns() yields {described(turn)}, and must yield {WANTED}{source_location(self.task.turns)}"
            )
        name = turn[0]
        if name in players:
            return players[name]
        hint = did_you_mean(str(name), players)
        there = f" ({hint})" if hint else ""
        raise RunError(
            f"turns() yields {name!r}, and optimizers has {', '.join(players)}{there}{source_location(self.task.turns)}"
        )

    def _exchange(self, player: Player) -> None:
        """Makes the gradients of a turn the means over all ranks; collective. Raises RunError where ranks differ in
        which there are."""
        there = tuple(parameter.grad is not None for parameter in player.parameters)
        if there != player.exchanged:
            everybody = self.world.gather(there) if player.exchanged is None else [player.exchanged, there]
            odd = next((index for index, has in enumerate(zip(*everybody, strict=True)) if len(set(has)) > 1), None)
            if odd is not None:
                names = [
                    name
                    for name, parameter in self.state.module.named_parameters()
                    if parameter is player.parameters[odd]
                ]
                raise RunError(
                    f"the loss of the turn '{player.name}' depends on {listed(names)} in some iterations or on some"
                    " ranks alone, so that ranks cannot exchange its gradients; let it depend on the same parameters"
                    f" each time{source_location(self.task.turns)}"
                )
            player.exchanged = there
        coalesced.average(parameter.grad for parameter in player.parameters if parameter.grad is not None)

    def _record_turns_rates(self, player: Player) -> None:
        """The rates that a turn uses: `lr_d`, and `lr_d_1` and on of further groups."""
        for index, group in enumerate(player.optimizer.param_groups):
            lr = group["lr"]
            column = f"lr_{player.name}_{index}" if index else f"lr_{player.name}"
            self.state.row[column] = lr if not isinstance(lr, Tensor) else lr.item() if self._on_cpu else lr.clone()
