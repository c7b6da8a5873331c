"""`check_hook` names the check, the difference and the remedy for broken ones."""

import random
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from annotated_types import Gt

from hooks import Hook, Ranks, State
from orchestrator.testing import HookCheckFailed, check_hook
from tests.orchestrator.testing.test_training import OwnOptimizer


@dataclass
class Forgets(Hook):
    """Counts steps and forgets them."""

    def __post_init__(self) -> None:
        self._count = 0

    def on_update(self, state: State) -> None:
        self._count += 1
        state.record(updates=self._count)


@dataclass
class HasNoItems(Forgets):
    """Counts as false."""

    def __len__(self) -> int:
        return 0


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
class ReadsDeclared(Reads):
    """The same, and says so."""

    waits_for_device: ClassVar[frozenset[str]] = frozenset({"on_loss"})


@dataclass
class ReadsBesideIt(Hook):
    """Looks at the device of a tensor, and reads what is computed from it."""

    def on_loss(self, state: State) -> None:
        if state.loss is not None:
            twice = state.loss * 2 * torch.ones((), device=state.loss.device)
            state.record(twice=twice)
            state.record(read=twice.item())


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
class ClipsOnOne(Hook):
    """Changes gradients on the master alone."""

    ranks: ClassVar[Ranks] = Ranks.MASTER

    def on_gradients(self, state: State) -> None:
        for gradient in state.gradients():
            gradient.clamp_(-0.01, 0.01)


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
class Unseeded(Hook):
    """Draws from a generator that nobody seeds."""

    def __post_init__(self) -> None:
        self._random = random.Random()

    def on_loss(self, state: State) -> None:
        state.loss = (
            state.loss * (1 + 0.01 * self._random.random()) if state.loss is not None else None
        )


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
class Demanding(Hook):
    """Has a field that cannot be drawn."""

    path: str


class Bare(Hook):
    """Not a dataclass."""


@dataclass
class Mutable(Hook):
    """Declares a mutable field that it lacks."""

    mutable: ClassVar[frozenset[str]] = frozenset({"decay"})


@dataclass
class Draws(Hook):
    """Says that it observes, and draws from the generator that training draws from."""

    observes: ClassVar[bool] = True

    def on_phase_end(self, state: State) -> None:
        torch.rand(())


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
class Records(Hook):
    """Says that it observes, and adds to the rows of training."""

    observes: ClassVar[bool] = True

    def on_step(self, state: State) -> None:
        state.record(seen=1)


BROKEN: list[tuple[type[Hook], str, str]] = [
    (
        Forgets,
        "resumed",
        "the row of train iteration 5: ['updates'] is 1, not 5, as in the uninterrupted run",
    ),
    (HasNoItems, "resumed", "['updates'] is 1, not 5, as in the uninterrupted run"),
    (SavesASet, "state", "state_dict() returns what a checkpoint cannot hold"),
    (OneForAll, "resumed", "['state_dict']['sum'] is 2.0, not 4.0, as in the uninterrupted run"),
    (Reads, "device", "on_loss waits for the device in every iteration (bool)"),
    (ReadsBesideIt, "device", "on_loss waits for the device in every iteration (item)"),
    (Masks, "device", "on_gradients waits for the device in every iteration (indexing by a mask)"),
    (Waits, "collectives", "on_loss calls a collective (allreduce) and does not declare it: "),
    (ClipsOnOne, "two ranks", "after training on rank 1 the parameter ['0.weight'] is"),
    (Cached, "mutable", "with scale=0.8 from report 1 on, at report 2 of 4 ['metrics']"),
    (Unseeded, "resumed", "stopped and resumed at every report, at report 1 of 4 ['metrics']"),
    (
        TooMany,
        "runs",
        "failed in on_gradients: ValueError: column 'gradient' got a tensor of shape (8, 5)",
    ),
    (Loss, "runs", "the loop records the column `loss`; use another name, such as `own_loss`"),
    (Demanding, "runs", "Demanding.path: is missing"),
    (Bare, "class", "put @dataclass above the class"),
    (
        Draws,
        "observes",
        "on_phase_end changes what training and other hooks share: random numbers of ['torch']",
    ),
    (
        Scales,
        "observes",
        "on_backward changes what training and other hooks share: state.batch[0] is torch.float32 (4, 5)",
    ),
    (StopsInAStep, "observes", "at report 1 ['step'] is 1, not 4, as without the hook"),
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
    (
        Records,
        "observes",
        "the row of train iteration 1: ['seen'] is there, and should not be, as without the hook",
    ),
    (Mutable, "class", "mutable names decay, which is not a field"),
]


@pytest.mark.parametrize(("cls", "check", "said"), BROKEN, ids=[cls.__name__ for cls, *_ in BROKEN])
def test_broken_hook_fails_with_the_check_and_the_difference(
    cls: type[Hook], check: str, said: str
) -> None:
    with pytest.raises(HookCheckFailed) as caught:
        check_hook(cls)
    text = str(caught.value)
    assert text.startswith(f"{cls.__name__} fails the check '{check}'")
    assert said in text
    assert "\n  to do:  " in text


@dataclass
class SeesAdagrad(Hook):
    """Fails beside another optimizer; records a tensor without reading it."""

    def on_start(self, state: State) -> None:
        assert isinstance(state.optimizer, torch.optim.Adagrad)

    def on_loss(self, state: State) -> None:
        state.record(twice=state.loss * 2)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (ReadsDeclared, {}),
        (SeesAdagrad, {"task": OwnOptimizer()}),
        (Forgets, {"varies": ["updates"]}),
    ],
    ids=["declared device read", "own optimizer of the task, tensor not read", "column in varies"],
)
def test_hook_that_keeps_its_promises_passes(cls: type[Hook], options: dict[str, Any]) -> None:
    check_hook(cls, **options)


def test_a_local_class_cannot_be_sent_to_other_processes() -> None:
    @dataclass
    class Local(Hook):
        size: int = field(default=1)

    with pytest.raises(HookCheckFailed, match="cannot be sent to other processes"):
        check_hook(Local)
