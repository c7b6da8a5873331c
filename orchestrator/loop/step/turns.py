"""Iterations in which several optimizers train in turn, as for a GAN. Runs in workers."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from hooks.distributed import collectives
from hooks.model.gradients import order_like_model
from hooks.parameter_names import listed
from orchestrator.errors import TaskError, did_you_mean
from orchestrator.loop.model.torch_settings import Precision
from orchestrator.loop.step.iterations import IterationRunner, Timestamps
from orchestrator.loop.step.weights import make_zero_loss
from orchestrator.loop.task_errors import check_type, describe
from orchestrator.user_code import find_source_location

EXPECTED = "turns, each an optimizer's name and its loss"


class Player:
    """An optimizer that takes turns, and its parameters."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        update: Callable[[], Timestamps],
        module: nn.Module,
    ) -> None:
        self.name, self.optimizer, self.precision, self.update = name, optimizer, precision, update
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        self.parameters = order_like_model(module, filter(attrgetter("requires_grad"), parameters))
        self.has_gradients: tuple[bool, ...] | None = None
        """Flags of its parameters: true if it had a gradient when ranks first averaged them."""


class TurnRunner(IterationRunner):
    """Runner of iterations with turns. Each turn has the events of a single optimizer's iteration.
    Used in workers.

    A turn's backward pass computes gradients only for its optimizer's parameters. Ranks average
    them after the turn's last backward pass of a step, in one message per dtype and device. An
    optimizer steps in its turns of a step's last micro-batch. An optimizer without a turn there
    steps afterwards.
    """

    def train(self, batches: Iterator[Any]) -> Iterator[None]:
        """Train on one micro-batch per `next`, turn by turn."""
        state, task = self.state, self.task
        players = {
            name: Player(
                name,
                optimizer,
                self.precisions[name],
                self._make_update(optimizer, self.precisions[name]),
                state.module,
            )
            for name, optimizer in state.optimizers.items()
        }
        first, waiting = next(iter(players)), dict[str, Tensor]()
        fetch, finish = self._make_fetch(batches), self._make_finish(state.epoch, ())
        position, group, previous_end = 1, 1, self.clock.restart()
        while True:
            fetch_times = fetch()
            if state.accumulate > 1:
                position, group = self._advance_microbatch(position, group)
            turns: Iterator[Any] = iter(
                check_type(task.turns, task.turns(state.module, state.batch), Iterable, EXPECTED)
            )
            timestamps: list[Timestamps] = []
            has_stepped = False
            while True:
                with self.precision.autocast():
                    turn = next(turns, None)
                if turn is None:
                    break
                player = self._find_player(turn, players)
                state.take_turn(player.name, player.parameters)
                start = timestamps[-1][-1] if timestamps else fetch_times[-1]
                timestamps.append(
                    (start, *self._run_turn(player, turn[1], group, is_last=position == group))
                )
                has_stepped |= state.stepped
                if position < group:
                    waiting[player.name] = cast(Tensor, state.loss).detach()
                else:
                    waiting.pop(player.name, None)
                state.take_turn(first, None)
            if not timestamps:
                raise TaskError(
                    f"turns() yields nothing for a batch; expected {EXPECTED}{find_source_location(task.turns)}"
                )
            while position == group and waiting:
                player = players[next(iter(waiting))]
                state.take_turn(player.name, player.parameters)
                state.loss = waiting.pop(player.name)
                timestamps.append(self._step_late(player, timestamps[-1][-1]))
                has_stepped |= state.stepped
                state.take_turn(first, None)
            state.stepped = has_stepped
            if "loss" in state.row:
                count = self.loss_count
                self.means.add("loss", state.row["loss"] * count, count)
            previous_end = finish(previous_end, fetch_times, timestamps)
            yield

    def _run_turn(self, player: Player, loss: Any, group: int, *, is_last: bool) -> Timestamps:
        """Run a turn, from its loss on. Return the timestamps of a single optimizer's iteration."""
        state, fire, mark, calls = self.state, self.plan.fire, self.clock.mark, self.plan.calls
        t_forward = t_on_forward = mark()
        if calls["on_forward"]:
            fire("on_forward", state)
            t_on_forward = mark()
        if not isinstance(loss, Tensor) or loss.ndim:
            loss = self._sum_terms(self.task.turns, loss)
        state.loss = loss
        column = state.column("loss")
        self._record_loss(column, loss)
        if state.loss_weight == 0:
            state.loss = make_zero_loss(loss, player.parameters)
        else:
            state.row["loss"] = state.row.get("loss", 0.0) + state.row[column]
        self._record_learning_rates(player.optimizer, f"lr_{player.name}")
        t_loss = t_on_loss = mark()
        if calls["on_loss"]:
            fire("on_loss", state)
            t_on_loss = mark()
        assert state.loss is not None
        scaled = state.loss if group == 1 else state.loss / group
        if self.weighed is not None:
            scaled = self.weighed.scale(state.loss)
        player.precision.scale(scaled).backward(inputs=player.parameters)
        t_local_backward = t_backward = mark()
        if is_last and state.world_size > 1:
            self._average_gradients(player)
            t_backward = mark()
        t_gradients = t_backward
        if calls["on_backward"]:
            fire("on_backward", state)
            t_gradients = mark()
        state.stepped = False
        update_times = player.update() if is_last else (t_gradients,) * 4
        backward_times = t_local_backward, t_backward, t_gradients
        return t_forward, t_on_forward, t_loss, t_on_loss, *backward_times, *update_times, mark()

    def _step_late(self, player: Player, start: Any) -> Timestamps:
        """Step an optimizer that had turns only in earlier micro-batches of the step. Return its
        timestamps."""
        if self.state.world_size > 1:
            self._average_gradients(player)
        t_backward = self.clock.mark()
        return *[start] * 6, t_backward, t_backward, *player.update(), self.clock.mark()

    def _find_player(self, turn: Any, players: dict[str, Player]) -> Player:
        """Return the player of a turn; raises TaskError if there is none."""
        if not isinstance(turn, tuple) or len(turn) != 2:
            raise TaskError(
                f"turns() yields {describe(turn)}; expected {EXPECTED}{find_source_location(self.task.turns)}"
            )
        name = turn[0]
        if name in players:
            return players[name]
        hint = did_you_mean(str(name), players)
        suggestion = (f" ({hint})" if hint else "") + find_source_location(self.task.turns)
        raise TaskError(
            f"turns() yields {name!r}, but `optimizers` has {', '.join(players)}{suggestion}"
        )

    def _average_gradients(self, player: Player) -> None:
        """Average the gradients of a turn across all ranks; collective.

        Raises TaskError if ranks differ in which parameters have one.
        """
        existing = tuple(parameter.grad is not None for parameter in player.parameters)
        if existing != player.has_gradients:
            ranks = (
                self.world.gather(existing)
                if player.has_gradients is None
                else [player.has_gradients, existing]
            )
            for parameter, has in zip(player.parameters, zip(*ranks, strict=True), strict=True):
                if len(set(has)) > 1:
                    names = [
                        name
                        for name, other in self.state.module.named_parameters()
                        if other is parameter
                    ]
                    raise TaskError(
                        f"the loss of turn '{player.name}' must depend on the same parameters in each iteration and on"
                        f" each rank, but not on {listed(names)}{find_source_location(self.task.turns)}"
                    )
            player.has_gradients = existing
        collectives.average(
            parameter.grad for parameter in player.parameters if parameter.grad is not None
        )
