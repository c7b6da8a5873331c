import pytest
import torch
from torch import nn

from orchestrator.loop.model.precision import Precision
from orchestrator.testing.device_reads import DeviceReads

CPU = torch.device("cpu")


def layer() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    linear = nn.Linear(3, 2)
    return linear, torch.optim.SGD(linear.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_forward_pass_computes_in_the_precisions_own_type(
    name: str, dtype: torch.dtype
) -> None:
    linear, _ = layer()
    assert Precision(name, CPU).with_autocast(linear)(torch.ones(1, 3)).dtype is dtype


def stepped(
    precision: Precision, linear: nn.Linear, optimizer: torch.optim.Optimizer, factor: float = 1.0
) -> bool:
    """Whether a step with gradients of this factor was made."""
    assert precision.scaler is not None
    optimizer.zero_grad()
    precision.scale(linear(torch.ones(1, 3)).sum() * factor).backward()
    precision.scaler.unscale_(optimizer)
    return precision.step(optimizer)


@pytest.mark.parametrize("factor", [1.0, float("inf")])
def test_fp16_waits_for_the_device_once_a_step_as_the_scaler_itself_does(factor: float) -> None:
    precision, read = Precision("fp16", CPU), list[str]()
    with DeviceReads(read.append):
        assert stepped(precision, *layer(), factor) == (factor == 1.0)
    assert read == ["item"]


def test_a_scale_that_grows_is_no_overflow() -> None:
    precision = Precision("fp16", CPU)
    precision.scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    assert stepped(precision, *layer())
    assert precision.scaler.get_scale() == 131072
