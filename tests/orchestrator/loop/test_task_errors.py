"""What a task's methods must not return, such as a loss without a gradient, which torch refuses
without saying whose it is or where it comes from."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from orchestrator.engines.error_origin import is_user_error
from orchestrator.engines.rank_failures import RankFailed
from orchestrator.errors import TaskError
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from orchestrator.task import Task
from tests.ranks import on_ranks
from tests.tasks import Points, experiment

LBFGS = Component(type="LBFGS", lr=0.1)


@dataclass
class WithoutGradient(Points):
    """Points whose loss lost its gradient, in one of several ways."""

    way: str = "detached"

    def model(self) -> nn.Module:
        return super().model().requires_grad_(self.way != "frozen")

    def loss(self, output: Tensor, batch: Any) -> Any:
        with torch.set_grad_enabled(self.way != "no_grad"):
            loss = super().loss(output, batch)
        if self.way == "number":
            return torch.tensor(loss.item())
        if self.way == "terms":
            return {"first": loss.detach(), "second": loss.detach()}
        return loss.detach() if self.way == "detached" else loss


class Weighed(WithoutGradient):
    def weight(self, batch: Any) -> float:
        return float(len(batch[0]))


class LaterWithoutGradient(Points):
    """Points whose loss has a gradient only when a step evaluates it first."""

    evaluations = 0

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        self.evaluations += 1
        loss = super().loss(output, batch)
        return loss.detach() if self.evaluations > 1 else loss


class MetricFails(WithoutGradient):
    def metrics(self, output: Tensor, batch: Any) -> Any:
        raise RuntimeError("a failure of its own")


def fail(task: Points, **fields: Any) -> TaskError:
    with pytest.raises(TaskError) as caught:
        list(Loop(task, experiment(**fields), {}).run())
    return caught.value


def message_of(method: Any) -> str:
    place = f"{inspect.getsourcefile(method)}:{inspect.getsourcelines(method)[1]}"
    return (
        f"{method.__name__}() returns a loss without a gradient: it was detached, computed under"
        f" no_grad, or depends on no trainable parameter of the model ({place})"
    )


@pytest.mark.parametrize("way", ["detached", "no_grad", "number", "terms", "frozen"])
def test_loss_without_a_gradient_is_an_error_of_the_task(way: str) -> None:
    assert str(fail(WithoutGradient(way=way))) == message_of(WithoutGradient.loss)


@pytest.mark.parametrize(
    "fields",
    [{"accumulate": 2}, {"accumulate": "auto"}, {"optimizer": LBFGS}, {"precision": "fp16"}],
    ids=["accumulate", "auto", "closure", "fp16"],
)
def test_every_way_to_step_refuses_it(fields: dict[str, Any]) -> None:
    assert str(fail(WithoutGradient(), **fields)) == message_of(WithoutGradient.loss)


def test_weighed_loss_without_a_gradient_is_refused() -> None:
    assert str(fail(Weighed())) == message_of(WithoutGradient.loss)


def test_later_evaluation_of_a_step_is_refused() -> None:
    message = str(fail(LaterWithoutGradient(), optimizer=LBFGS))
    assert message == message_of(LaterWithoutGradient.loss)


def test_other_failure_before_the_backward_pass_keeps_its_text() -> None:
    with pytest.raises(RuntimeError, match=r"^a failure of its own$"):
        list(Loop(MetricFails(), experiment(), {}).run())


def test_retry_would_fail_again() -> None:
    failure = RankFailed.from_error(0, 1, fail(WithoutGradient()))
    assert failure.is_user_error
    assert not failure.can_be_secondary


class OnOneRank(Points):
    """Points whose loss has no gradient on rank 1."""

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        loss = super().loss(output, batch)
        return loss.detach() if self.progress.rank else loss


def describe_failure(rank: int, world_size: int) -> tuple[str, bool]:
    world = World(rank, world_size, rank)
    with pytest.raises(Exception) as caught:  # ranks fail differently
        list(Loop(OnOneRank(), experiment(), {}, RunContext(world=world)).run())
    failure = RankFailed.from_error(rank, world_size, caught.value)
    return failure.message, failure.can_be_secondary


def test_rank_without_a_gradient_is_the_one_that_failed() -> None:
    (_, is_first_secondary), (message, is_secondary) = on_ranks(describe_failure)
    assert is_first_secondary
    assert not is_secondary
    assert message.startswith(message_of(OnOneRank.loss))


# What a task's methods return


@dataclass
class Gives(Task):
    """A task one of whose methods gives something else than it must."""

    loss_shape: tuple[int, ...] = ()
    metric_shape: tuple[int, ...] = (4,)

    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def data(self) -> Any:
        return {"train": [(torch.zeros(2),)] * 10}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0])

    def loss(self, output: Any, batch: Any) -> Any:
        return [output.mean()] if self.loss_shape == (0,) else output.mean().expand(self.loss_shape)

    def metrics(self, output: Any, batch: Any) -> Any:
        return {"score": 0.5 if self.metric_shape == (0,) else torch.zeros(self.metric_shape)}


def failure_of(**fields: Any) -> str:
    with pytest.raises(TaskError) as caught:
        list(Loop(Gives(**fields), experiment(batch_size=4), {}).run())
    assert is_user_error(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((), "a tensor of shape ()"),
        ((1,), "a tensor of shape (1,)"),
        ((4, 1), "a tensor of shape (4, 1)"),
        ((0,), "0.5"),
    ],
)
def test_a_metric_that_is_not_one_value_for_each_sample_is_refused(
    shape: tuple[int, ...], words: str
) -> None:
    line = 1 + Path(__file__).read_text().splitlines().index(
        "    def metrics(self, output: Any, batch: Any) -> Any:"
    )
    said = failure_of(metric_shape=shape)
    assert said.startswith(
        f"metrics() returns {words} for 'score'; expected shape (4,), one value per sample"
    )
    assert said.endswith(f"({__file__}:{line})")


@pytest.mark.parametrize(
    ("shape", "words"),
    [((4,), "a tensor of shape (4,)"), ((1,), "a tensor of shape (1,)"), ((0,), "a list")],
)
def test_loss_that_is_not_a_scalar_is_refused(shape: tuple[int, ...], words: str) -> None:
    assert failure_of(loss_shape=shape).startswith(
        f"loss() returns {words}; expected a scalar tensor"
    )
