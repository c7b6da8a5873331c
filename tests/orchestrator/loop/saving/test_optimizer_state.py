"""Optimizers that hold another one, as the common recipe of SAM does."""

from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

from orchestrator.loop.saving.optimizer_state import (
    list_counters,
    load_state,
    load_with_present_settings,
    save_state,
)


class SAM(Optimizer):
    """The recipe of davda54/sam: its state dict holds nothing of `base_optimizer`."""

    def __init__(
        self, params: Any, rho: float = 0.05, relinks: bool = True, base: Any = SGD, **options: Any
    ) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.relinks = relinks

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        self.base_optimizer.step()

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        if self.relinks:
            self.base_optimizer.param_groups = self.param_groups


class Whole(SAM):
    """Has the inner state in its own state dict."""

    def state_dict(self) -> Any:
        return {**super().state_dict(), "base": self.base_optimizer.state_dict()}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.base_optimizer.load_state_dict(state_dict["base"])


class Wrapped(Optimizer):
    """Lookahead by the common recipe: a state dict in a form of its own, and no super().__init__.

    Loading it gives the inner optimizer new parameter groups, and leaves the old ones here.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        self.inner = SGD(params, **options)
        self.param_groups = self.inner.param_groups
        self.defaults = self.inner.defaults
        self.state = self.inner.state
        self.slow = [
            parameter.detach().clone() for parameter in self.inner.param_groups[0]["params"]
        ]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
                slow.lerp_(parameter, 0.5)
                parameter.copy_(slow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return {"fast": self.inner.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict["fast"])
        self.count = state_dict["count"]
        for own, saved in zip(self.slow, state_dict["slow"], strict=True):
            own.copy_(saved)


class Divided(Optimizer):
    """Gives the parameters to two optimizers in a list or a mapping, as those do that use Muon for
    matrices."""

    def __init__(self, params: Any, keeps: type = list, momentum: float = 0.9, **options: Any):
        super().__init__(params, options)
        (group,) = self.param_groups
        matrices = [parameter for parameter in group["params"] if parameter.ndim > 1]
        others = [parameter for parameter in group["params"] if parameter.ndim <= 1]
        parts = {
            "matrices": Adam(matrices, **options),
            "others": SGD(others, momentum=momentum, **options),
        }
        self.parts = parts if keeps is dict else keeps(parts.values())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts.values() if isinstance(self.parts, dict) else self.parts:
            part.step()


class Decayed(Optimizer):
    """Divides the learning rate by the number of steps, which is all its state."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                parameter.add_(parameter.grad, alpha=-group["lr"] / state["step"])


def _train(model: nn.Module, optimizer: Optimizer, scheduler: StepLR, steps: range) -> None:
    for step in steps:
        model(torch.full((2, 3), float(step + 1))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def _make(**options: Any) -> tuple[nn.Module, Optimizer, StepLR]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = options.pop("kind", SAM)(model.parameters(), lr=0.1, **options)
    return model, optimizer, StepLR(optimizer, 2, gamma=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "relinks": False},
        {"base": Adam},
        {"base": Decayed},
        {"kind": Whole, "momentum": 0.9},
        {"kind": Wrapped},
        {"kind": Wrapped, "momentum": 0.9},
        {"kind": Divided},
        {"kind": Divided, "keeps": tuple},
        {"kind": Divided, "keeps": dict},
        {"base": Divided},
    ],
)
def test_inner_optimizer_continues_with_its_state_and_its_learning_rate(
    options: dict[str, Any],
) -> None:
    whole, optimizer, scheduler = _make(**options)
    _train(whole, optimizer, scheduler, range(3))
    file = BytesIO()
    torch.save([whole.state_dict(), save_state(optimizer), scheduler.state_dict()], file)
    _train(whole, optimizer, scheduler, range(3, 7))

    model, optimizer, scheduler = _make(**options)
    weights, state, schedule = torch.load(BytesIO(file.getvalue()), weights_only=True)
    model.load_state_dict(weights)
    load_state(optimizer, state)
    scheduler.load_state_dict(schedule)
    _train(model, optimizer, scheduler, range(3, 7))
    for name, weights in model.state_dict().items():
        assert torch.equal(weights, whole.state_dict()[name])


@pytest.mark.parametrize("kind", [SAM, Whole, Wrapped, Divided])
def test_present_settings_replace_the_saved_ones(kind: type[Optimizer]) -> None:
    """Another run goes on from a checkpoint with a learning rate of its own; the momentum is the
    checkpoint's."""
    model, optimizer, scheduler = _make(kind=kind, momentum=0.9)
    _train(model, optimizer, scheduler, range(3))
    saved = deepcopy(save_state(optimizer))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for group in optimizer.param_groups:
        group["lr"] = 0.3
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()

    again, optimizer, _ = _make(kind=kind, momentum=0.9)
    again.load_state_dict(weights)
    for group in optimizer.param_groups:
        group["lr"] = 0.3
    load_with_present_settings(optimizer, saved)
    assert [group["lr"] for group in optimizer.param_groups] == [0.3]
    again(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_state_that_the_outer_optimizer_saves_is_saved_once() -> None:
    model, optimizer, scheduler = _make(kind=Whole, momentum=0.9)
    _train(model, optimizer, scheduler, range(2))
    assert save_state(optimizer).keys() == {"state", "param_groups", "base"}


class Renamed(Optimizer):
    """Names its arguments otherwise than its settings, and counts its steps."""

    def __init__(self, params: Any, learning_rate: float, beta1: float = 0.9) -> None:
        super().__init__(params, {"lr": learning_rate, "betas": (beta1, 0.99), "k": 0})


def test_settings_of_a_schedule_are_no_counters() -> None:
    """A run that goes on with another schedule would get the rate of the old one."""
    assert list_counters(Renamed(nn.Linear(1, 1).parameters(), 0.1)) == {"k"}


class Factored(Optimizer):
    """Keeps factors in single precision in containers, as SOAP does."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                third = torch.full((2,), 1 / 3)
                factors = {"left": third, "right": (third.clone(), [third.clone()])}
                self.state[parameter] = {"flat": third.clone(), "factors": [factors]}


def test_factors_in_containers_keep_their_precision() -> None:
    before, after = (Factored([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))]) for _ in "ab")
    before.step()
    load_state(after, save_state(before))
    (state,) = after.state.values()
    (factors,) = state["factors"]
    tensors = [state["flat"], factors["left"], factors["right"][0], factors["right"][1][0]]
    for tensor in tensors:
        assert torch.equal(tensor, torch.full((2,), 1 / 3))


class Renaming(Factored):
    """Loads states of an older version, as torch's optimizers do."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        for own in self.state.values():
            own["count"] = own.pop("k")
            own["factors"] = [{"first": own["factors"][0]["left"]}]


def test_optimizer_may_rename_and_drop_parts_of_a_loaded_state() -> None:
    before, after = (Renaming([nn.Parameter(torch.ones(2, dtype=torch.bfloat16))]) for _ in "ab")
    before.step()
    (state,) = before.state.values()
    state["k"] = 3
    load_state(after, save_state(before))
    (state,) = after.state.values()
    assert state.keys() == {"flat", "factors", "count"}
    assert state["count"] == 3
    assert state["factors"][0].keys() == {"first"}
    assert torch.equal(state["flat"], torch.full((2,), 1 / 3))


@pytest.mark.parametrize("load", [load_state, load_with_present_settings])
def test_other_number_of_groups_is_an_error_of_torch(load: Callable[..., None]) -> None:
    weight, bias = nn.Linear(1, 1).parameters()
    single = SGD([weight, bias], lr=0.1)
    double = SGD([{"params": [weight]}, {"params": [bias]}], lr=0.1)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        load(double, save_state(single))
    with pytest.raises(ValueError, match="different number of parameter groups"):
        load(single, save_state(double))


def test_inner_optimizer_may_refer_to_the_one_around_it() -> None:
    _, optimizer, _ = _make(momentum=0.9)
    expected = save_state(optimizer).keys()
    optimizer.base_optimizer.wrapper = optimizer  # type: ignore[attr-defined]
    assert save_state(optimizer).keys() == expected
