"""Optimizers whose step needs a closure, and settings that they exclude."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from orchestrator.errors import ConfigError
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.optim.closures import needs_closure, needs_gradients_before
from orchestrator.experiment.optim.optimizer import OPTIMIZERS
from orchestrator.experiment.sections.experiment import Experiment
from tests.orchestrator.experiment.samples import HERE
from tests.sam import SAM


def experiment(**more: Any) -> Experiment:
    return make_experiment({"name": "line", "task": f"{HERE}:Line", "epochs": 1, **more})


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"accumulate": 2}, "accumulate"),
        ({"precision": "fp16"}, "precision"),
        ({"workers": {"count": 2, "strategy": "fsdp"}}, r"workers\.strategy"),
    ],
)
def test_settings_unsuitable_for_lbfgs_are_refused(fields: Any, path: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"{path}: cannot be used with LBFGS, whose step evaluates the loss several",
    ):
        experiment(optimizer={"type": "LBFGS"}, **fields)


class Raises(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise ValueError("needs a closure")
        return closure()


class CallsUnasked(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            return closure()


class CallsIfGiven(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return closure() if closure is not None else None


class CallsIfTrue(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure and self.param_groups:
            loss = closure()
        return loss


class RefusesOne(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        if closure is not None:
            raise ValueError("takes no closure")


class AsksBefore(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        is_given = closure is not None
        return closure() if is_given else None


class AsksLast(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return self.param_groups and closure and closure()


class Matches(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        match closure:
            case None:
                return None
        return closure()


class CatchesError(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        try:
            return closure()
        except TypeError:
            return None


class SuppressesError(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        with suppress(TypeError):
            return closure()


class PassesOn(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize(
    ("cls", "needed"),
    [
        (SAM, True),
        (Raises, True),
        (CallsUnasked, True),
        (CallsIfGiven, False),
        (CallsIfTrue, False),
        (RefusesOne, False),
        (AsksBefore, False),
        (AsksLast, False),
        (Matches, False),
        (CatchesError, False),
        (SuppressesError, False),
        (PassesOn, False),
    ],
)
def test_optional_closure_is_needed_where_a_step_fails_without_it(
    cls: type[Optimizer], needed: bool
) -> None:
    assert needs_closure(cls) == needs_gradients_before(cls) == needed
    cls(
        [torch.nn.Parameter(torch.zeros(1))],
        **({"base_optimizer": torch.optim.SGD} if cls is SAM else {}),
    )
    assert needs_gradients_before(cls) == needed  # torch has wrapped step by now


def test_settings_unsuitable_for_sam_are_refused() -> None:
    optimizer = {"type": "tests.sam:SharpSGD", "lr": 0.1}
    with pytest.raises(
        ConfigError, match="accumulate: cannot be used with SharpSGD, whose step evaluates the loss"
    ):
        experiment(optimizer=optimizer, accumulate=2)
    assert [cls for cls in OPTIMIZERS.values() if needs_closure(cls)] == [torch.optim.LBFGS]
    assert not any(map(needs_gradients_before, OPTIMIZERS.values()))


@pytest.mark.parametrize(
    "hook",
    [{"loss_spike": True}, {"gradient_clip": {}}, {"freeze_parameters": {"patterns": "*"}}],
    ids=str,
)
def test_hooks_unsuitable_for_lbfgs_are_refused(hook: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"hooks\.\w+: does not work with an optimizer that needs a closure"
    ):
        experiment(optimizer={"type": "LBFGS"}, hooks=hook)
