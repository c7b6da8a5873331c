"""Every hook that ships runs on the device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hooks import State
from hooks.interval import Interval
from hooks.training.ema import EMA
from hooks.training.nan_guard import NanGuard
from tests.gpu.tasks import loop_on
from tests.hooks.checkpointing.test_export import exported, scaled_state
from tests.tasks import Overflows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("place", [None, "cpu"])
def test_averages_are_the_same_numbers_on_the_device_and_beside_it(
    device: torch.device, place: str | None
) -> None:
    hook = EMA(decay=0.5, device=place)
    loop = loop_on(device, hooks={"ema": hook})
    expected: dict[str, Any] = {}
    original = hook.on_update

    def update(state: State) -> None:
        original(state)
        for name, weight in state.module.state_dict().items():
            expected[name] = (
                weight.clone() if name not in expected else expected[name].lerp(weight, 0.5)
            )

    for call in loop.training.plan.calls["on_update"]:
        call.run = update
    list(loop.run())
    with hook.applied(loop.state):
        for name, value in loop.state.module.state_dict().items():
            torch.testing.assert_close(value, expected[name])


def test_a_loss_that_is_no_number_stops_the_run(device: torch.device, tmp_path: Path) -> None:
    loop = loop_on(
        device,
        hooks={"overflows": Overflows(4), "guard": NanGuard(every=Interval(2, "steps"))},
        artifacts=tmp_path,
    )
    with pytest.raises(Exception, match="step 4 has loss"):
        list(loop.run())
    assert loop.state.step == 3


@pytest.mark.parametrize("written", ["trace", "script"])
def test_torchscript_of_a_model_on_a_gpu_runs_on_the_cpu(
    cuda: torch.device, tmp_path: Path, written: Any
) -> None:
    """A trace keeps the device of each constant, which no loading changes."""
    state = scaled_state(tmp_path)
    state.module.to(cuda)
    points, scale = torch.randn(4, 5), torch.rand(4, 1)
    state.fresh_batches = lambda phase: iter([(points.to(cuda), scale.to(cuda))])
    program = torch.jit.load(exported(state, format=written))
    assert program(points=points, scale=scale)["output"].device.type == "cpu"
    assert next(state.module.parameters()).is_cuda
