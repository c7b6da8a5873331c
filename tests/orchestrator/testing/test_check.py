"""A hook that keeps what hooks promise passes; one that does not is told which check, with which fields, where, and
what to do."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from annotated_types import Ge, Gt, Le
from torch import Tensor

from hooks import Hook, Interval, Ranks, State, paced_by
from hooks.hook import Setup
from orchestrator.testing import HookCheckFailed, check_hook
from tests.orchestrator.testing.test_training import OwnOptimizer


@dataclass
class Smoothed(Hook):
    """Records a moving average of the loss now and then, and does all that a hook may do rightly."""

    decay: Annotated[float, Ge(0), Le(1)] = 0.9
    every: Interval = Interval(2, "steps")

    mutable: ClassVar[frozenset[str]] = frozenset({"decay", "every"})

    def __post_init__(self) -> None:
        self._mean: Tensor | None = None

    def on_loss(self, state: State) -> None:
        if state.phase == "train" and state.loss is not None:
            loss = state.loss.detach()
            self._mean = loss if self._mean is None else self._mean * self.decay + loss * (1 - self.decay)

    @paced_by("every")
    def on_step(self, state: State) -> None:
        if self._mean is not None:
            state.record(smoothed_loss=self._mean, shown=float(self._mean))

    def rank_state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean}

    def load_rank_state_dict(self, state: dict[str, Any]) -> None:
        self._mean = state["mean"]


@dataclass
class Noise(Hook):
    """Adds noise to the gradients, the same on all ranks."""

    size: Annotated[float, Ge(0)] = 0.01

    def on_gradients(self, state: State) -> None:
        generator = torch.Generator().manual_seed(state.step)
        for gradient in state.gradients():
            gradient.add_(self.size * torch.randn(gradient.shape, generator=generator))
        state.forget_gradients()

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="its noise is drawn for whole gradients")


@pytest.mark.parametrize("cls", [Smoothed, Noise])
def test_a_hook_that_keeps_what_hooks_promise_passes(cls: type[Hook]) -> None:
    check_hook(cls, examples=4)


# Those that do not


@dataclass
class Forgets(Hook):
    """Counts steps and forgets them."""

    def __post_init__(self) -> None:
        self._count = 0

    def on_update(self, state: State) -> None:
        self._count += 1
        state.record(updates=self._count)


@dataclass
class ForgetsWeights(Hook):
    """Keeps a copy of the weights to go back to, and does not save it."""

    def __post_init__(self) -> None:
        self._first: list[Tensor] = []

    def on_update(self, state: State) -> None:
        parameters = list(state.module.parameters())
        self._first = self._first or [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter, first in zip(parameters, self._first, strict=True):
                parameter.lerp_(first, 0.1)

    def unsuitable(self, setup: Setup) -> str:
        return setup.explain(fsdp="it is not written for shards")


@dataclass
class SavesASet(Forgets):
    """Saves what a checkpoint cannot hold."""

    def state_dict(self) -> dict[str, Any]:
        return {"phases": {"train"}, "hook": Forgets}


@dataclass
class OneForAll(Forgets):
    """Saves under the master's name what differs from rank to rank."""

    def __post_init__(self) -> None:
        self._sum = 0.0

    def on_update(self, state: State) -> None:
        self._sum += state.rank

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum = state["sum"]


@dataclass
class Reads(Hook):
    """Waits for the device in each iteration."""

    def on_loss(self, state: State) -> None:
        if state.loss is not None and state.loss > 100:
            state.request_stop("the loss is large")


@dataclass
class ReadsAndSaysSo(Reads):
    """The same, and says so."""

    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_loss"})


@dataclass
class Masks(Hook):
    """Finds by a mask, which has as many places as the device says."""

    def on_gradients(self, state: State) -> None:
        gradient = state.gradients()[0]
        state.record(large=gradient[gradient.abs() > 0.1].sum())


@dataclass
class Waits(Hook):
    """Calls a collective and does not say so."""

    def on_loss(self, state: State) -> None:
        if state.world_size > 1 and state.loss is not None:
            dist.all_reduce(state.loss.detach().clone())


@dataclass
class WaitsAlone(Waits):
    """Calls one on the master alone."""

    ranks: ClassVar[Ranks] = Ranks.MASTER


@dataclass
class ClipsOnOne(Hook):
    """Changes gradients on the master alone."""

    ranks: ClassVar[Ranks] = Ranks.MASTER

    def on_gradients(self, state: State) -> None:
        for gradient in state.gradients():
            gradient.clamp_(-0.01, 0.01)


@dataclass
class Iterations(Hook):
    """Counts iterations where its interval counts steps."""

    every: Interval = Interval(3, "steps")

    def on_step(self, state: State) -> None:
        if self.every.count and state.iteration % self.every.count == 0:
            state.record(seen=1.0)


@dataclass
class Cached(Hook):
    """Has a field that may change, and does not look at it again."""

    scale: Annotated[float, Gt(0)] = 1.0
    mutable: ClassVar[frozenset[str]] = frozenset({"scale"})

    def on_start(self, state: State) -> None:
        self._scale = self.scale

    def on_gradients(self, state: State) -> None:
        for gradient in state.gradients():
            gradient.mul_(self._scale)


@dataclass
class Shares(Hook):
    """Keeps what it has seen in its class."""

    seen: ClassVar[list[int]] = []

    def on_update(self, state: State) -> None:
        self.seen.append(state.step)


SEEN: list[int] = []


@dataclass
class SharesList(Hook):
    """Two of it have one list."""

    def __post_init__(self) -> None:
        self._seen = SEEN


@dataclass
class Unseeded(Hook):
    """Draws from a generator that nobody seeds."""

    def __post_init__(self) -> None:
        self._random = random.Random()

    def on_loss(self, state: State) -> None:
        state.loss = state.loss * (1 + 0.01 * self._random.random()) if state.loss is not None else None


@dataclass
class TooMany(Hook):
    """Records a tensor of many numbers."""

    def on_gradients(self, state: State) -> None:
        state.record(gradient=state.gradients()[0])


@dataclass
class Loss(Hook):
    """Records under a name that the loop has."""

    def on_step(self, state: State) -> None:
        state.record(loss=1.0)


@dataclass
class Signature(Hook):
    """Has forgotten what is handed over."""

    def on_save(self, state: State) -> None:  # type: ignore[override]  # which the check is to find
        pass


@dataclass
class Async(Hook):
    """Is never awaited."""

    async def on_step(self, state: State) -> None:  # type: ignore[override]
        pass


@dataclass
class Bound(Hook):
    """Takes a value that it cannot do with."""

    period: Annotated[int, Ge(0)] = 1
    other: bool = False

    def on_update(self, state: State) -> None:
        state.record(turn=state.step % self.period)


@dataclass
class Demanding(Hook):
    """Has a field that cannot be drawn."""

    path: str


class Bare(Hook):
    """Is no dataclass."""


@dataclass
class Mutable(Hook):
    """Calls mutable what is no field."""

    mutable: ClassVar[frozenset[str]] = frozenset({"decay"})


@dataclass
class Draws(Hook):
    """Says that it observes, and draws from the generator that training draws from."""

    observes: ClassVar[bool] = True

    def on_phase_end(self, state: State) -> None:
        torch.rand(())


@dataclass
class SetsTorch(Hook):
    """Says that it observes, and sets what all of the process trains by."""

    observes: ClassVar[bool] = True

    def on_load(self, state: State, checkpoint: Any) -> None:
        torch.set_float32_matmul_precision("medium")


@dataclass
class Scales(Hook):
    """Says that it observes, and changes a batch that hooks after it look at."""

    observes: ClassVar[bool] = True

    def on_backward(self, state: State) -> None:
        state.batch[0].mul_(2)


@dataclass
class StopsInAStep(Hook):
    """Says that it observes, and ends training within a phase, where others train on."""

    observes: ClassVar[bool] = True

    def on_step(self, state: State) -> None:
        state.request_stop("enough")


@dataclass
class EndsOtherwise(Hook):
    """Says that it observes, and at its end changes weights, with which others may train on."""

    observes: ClassVar[bool] = True

    @torch.no_grad()
    def on_end(self, state: State) -> None:
        next(state.module.parameters()).zero_()


@dataclass
class Spoils(Hook):
    """Changes a buffer between forward and backward pass."""

    def on_forward(self, state: State) -> None:
        state.module.get_buffer("1.running_mean").add_(1)


@dataclass
class CannotSave(Hook):
    """Fails where a checkpoint is written."""

    def on_save(self, state: State, checkpoint: Any) -> None:
        raise OSError("no place")


@dataclass
class Records(Hook):
    """Says that it observes, and adds to the rows of training."""

    observes: ClassVar[bool] = True

    def on_step(self, state: State) -> None:
        state.record(seen=1)


BROKEN: list[tuple[type[Hook], str, str]] = [
    (Forgets, "resumed", "the row of train iteration 5: ['updates'] is 1, not 5, as undisturbed"),
    (ForgetsWeights, "resumed", "at report 2 of 4 metrics['train/loss'] is "),
    (SavesASet, "state", "state_dict() returns what a checkpoint cannot hold"),
    (OneForAll, "resumed", "state_dict['sum'] is 1.0, not 4.0, as undisturbed"),
    (Reads, "device", "on_loss waits for the device in every iteration (bool)"),
    (Masks, "device", "on_gradients waits for the device in every iteration (indexing by a mask)"),
    (Waits, "collectives", "on_loss calls a collective (allreduce) and does not declare it: "),
    (WaitsAlone, "collectives", "does not declare it, and runs on master only"),
    (ClipsOnOne, "two ranks", "after training on rank 1 the parameter ['0.weight'] is"),
    (Iterations, "pace", "'seen' is recorded in iteration 3, where the hook's interval is not due"),
    (Cached, "changed in flight", "with fields changed at the first report, at report 2 of 4 metrics"),
    (Shares, "sharing", "the class's own seen has changed"),
    (SharesList, "sharing", "two hooks have the same list as their _seen"),
    (Unseeded, "repeated", "run again by a new hook and without checkpoints, at report 1 of 4 metrics"),
    (TooMany, "columns", "on_gradients records 'gradient', a tensor of shape (8, 5)"),
    (Loss, "columns", "on_step records 'loss', which the loop records itself"),
    (Signature, "signatures", "write def on_save(self, state, checkpoint)"),
    (Async, "signatures", "on_step is a coroutine"),
    (Bound, "runs", "failed in on_update on rank 0: ZeroDivisionError"),
    (Demanding, "runs", "Demanding.path: is missing"),
    (Bare, "class", "put @dataclass above the class"),
    (Draws, "observes", "on_phase_end draws random numbers of torch"),
    (SetsTorch, "observes", "on_load sets torch's float32_matmul_precision to medium, where it was highest"),
    (
        Scales,
        "observes",
        "on_backward changes what training and other hooks share: state.batch[0] is torch.float32 (4, 5)",
    ),
    (StopsInAStep, "observes", "report 1 comes after step 1, not 4, as without the hook"),
    (
        EndsOtherwise,
        "observes",
        "at the end ['parameters']['0.weight'] is torch.float32 (8, 5) [0.0, 0.0, 0.0, 0.0]..., not",
    ),
    (
        Spoils,
        "runs",
        "a run with it fails: RuntimeError: one of the variables needed for gradient computation has been modified",
    ),
    (CannotSave, "runs", "failed in on_save on rank 0: OSError: no place"),
    (Records, "observes", "the row of train iteration 1: ['seen'] is there, and should not be, as without the hook"),
    (Mutable, "class", "mutable names decay, which is not a field"),
]


@pytest.mark.parametrize(("cls", "check", "said"), BROKEN, ids=[cls.__name__ for cls, *_ in BROKEN])
def test_a_hook_that_does_not_is_told_what_and_where(cls: type[Hook], check: str, said: str) -> None:
    with pytest.raises(HookCheckFailed) as caught:
        check_hook(cls, examples=12)
    text = str(caught.value)
    assert text.startswith(f"{cls.__name__} fails the check '{check}'")
    assert said in text
    assert "\n  to do:  " in text
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_waits_for_the_device_and_says_so_passes() -> None:
    check_hook(ReadsAndSaysSo, examples=0)


@dataclass
class SeesAdagrad(Hook):
    """Fails beside another optimizer."""

    def on_start(self, state: State) -> None:
        assert isinstance(state.optimizer, torch.optim.Adagrad)


def test_a_task_s_own_optimizer_is_the_one_it_is_checked_with() -> None:
    check_hook(SeesAdagrad, task=OwnOptimizer(), examples=0)


def test_of_drawn_fields_only_those_that_matter_are_told() -> None:
    with pytest.raises(HookCheckFailed, match=r"\n  fields: period=0\n"):
        check_hook(Bound, examples=12)


def test_what_differs_by_what_it_is_may_be_named() -> None:
    check_hook(Forgets, varies=["updates"], examples=0)


def test_a_class_that_no_other_process_can_import_is_told_so() -> None:
    @dataclass
    class Local(Hook):
        size: int = field(default=1)

    with pytest.raises(HookCheckFailed, match="cannot be sent to other processes"):
        check_hook(Local, examples=0)


def test_without_hypothesis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"pip install 'hookyard\[testing\]'"):
        check_hook(Noise)
