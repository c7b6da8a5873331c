import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hooks import Hook, State
from orchestrator.errors import ConfigError
from orchestrator.loop.loop import Loop
from orchestrator.loop.model.torch_settings import Precision
from orchestrator.loop.run_context import RunContext
from orchestrator.testing.device_reads import DeviceReads
from tests.tasks import Blocks, Points, Rows, experiment, numbers

CPU = torch.device("cpu")


def test_compiled_model_trains_as_an_uncompiled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both modes, with the names that its parameters have. As torch captures it alone: what
    makes machine code of it takes a minute to begin with."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))

    def run_loop(**fields: Any) -> tuple[list[Any], list[str]]:
        rows = Rows()
        loop = Loop(
            Points(train=16, val=8), experiment(steps=4, **fields), {}, RunContext(recorder=rows)
        )
        list(loop.run())
        return rows.columns("phase", "loss"), list(loop.state.module.state_dict())

    counters.clear()
    (rows, names), (expected, named) = run_loop(compile=True), run_loop()
    assert counters["stats"]["unique_graphs"] == 2  # one for training, one for evaluation
    assert names == named
    for (phase, loss), (same, reference) in zip(rows, expected, strict=True):
        assert (phase, loss) == (same, pytest.approx(reference, rel=1e-5))


@dataclass
class Images(Points):
    """The points as images that a convolution looks at."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 1, 5)),
            nn.Conv2d(1, 4, (1, 3)),
            nn.Conv2d(4, 3, (1, 3)),
            nn.Flatten(),
        )


def test_channels_last_changes_the_memory_layout_and_no_number() -> None:
    found = {}
    for wanted in (True, False):
        rows = Rows()
        loop = Loop(
            Images(train=16, val=0),
            experiment(steps=4, channels_last=wanted),
            {},
            RunContext(recorder=rows),
        )
        list(loop.run())
        assert loop.state.module.get_parameter("2.weight").stride(1) == (
            1 if wanted else 3
        )  # shape (3, 4, 1, 3)
        found[wanted] = [loss for (loss,) in rows.columns("loss")]
    assert found[True] == pytest.approx(found[False], rel=1e-5)


class Block(nn.Module):
    """Draws from every generator, and changes buffers in its forward pass, one of which it reads
    too."""

    calls: ClassVar[Counter[bool]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, points: Tensor, *, factor: float) -> Tensor:
        Block.calls[torch.is_grad_enabled()] += 1
        scale: Any = self.scale
        scale.mul_(0.9)
        hidden = self.norm(self.inner(points)) * (random.random() + np.random.rand())
        return points + nn.functional.dropout(hidden, 0.3, self.training).tanh() * factor * float(
            scale
        )


@dataclass
class Deep(Points):
    """Points through blocks."""

    def model(self) -> nn.Module:
        return Blocks(Block, factor=0.5)


def trained(task: Points, **fields: Any) -> tuple[list[Any], dict[str, Any]]:
    rows = Rows()
    loop = Loop(task, experiment(**fields), {}, RunContext(recorder=rows))
    list(loop.run())
    return rows.columns("phase", "loss"), numbers(loop.state.module)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activation_checkpointing_recomputes_bit_for_bit(precision: str) -> None:
    """With draws of every generator, and buffers that the forward pass changes."""
    Block.calls.clear()
    kept = trained(Deep(), steps=5, precision=precision, accumulate=2)
    calls = Block.calls.copy()
    assert (
        trained(
            Deep(),
            steps=5,
            precision=precision,
            accumulate=2,
            activation_checkpointing=["blocks.*"],
        )
        == kept
    )
    assert Block.calls == {True: 3 * calls[True], False: 2 * calls[False]}


def test_outermost_matching_submodules_are_checkpointed() -> None:
    found = Loop(
        Deep(), experiment(activation_checkpointing=["*", "blocks.1.inner"]), {}
    ).state.module
    assert [
        name for name, part in found.named_modules() if "keeps_activations_as" in vars(type(part))
    ] == [
        "first",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "last",
    ]
    for pattern, near in {
        "block.*": "did you mean blocks.",
        "blocks": "did you mean blocks.",
        "": "available: first, blocks.0",
    }.items():
        with pytest.raises(ConfigError) as error:
            Loop(Deep(), experiment(activation_checkpointing=pattern), {})
        assert (
            f"activation_checkpointing: pattern '{pattern}' matches no submodule with a forward pass; {near}"
            in str(error.value)
        )


def _settings() -> tuple[bool, str, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
    )


class Looks(Hook):
    """Notes how torch is set."""

    def __init__(self) -> None:
        self.seen: set[tuple[bool, str, bool]] = set()

    def on_step(self, state: State) -> None:
        self.seen.add(_settings())

    def on_end(self, state: State) -> None:
        self.seen.add(_settings())


def test_torch_settings_apply_only_while_the_run_trains() -> None:
    before, said = (
        _settings(),
        {"deterministic": True, "float32_matmul_precision": "high", "cudnn_benchmark": True},
    )
    looks, others = Looks(), Looks()
    one, other = (
        Loop(Points(), experiment(**said), {"looks": looks}).run(),
        Loop(Points(), experiment(), {"looks": others}).run(),
    )
    for _ in zip(one, other, strict=True):
        assert _settings() == before == (False, "highest", False)
    assert (looks.seen, others.seen) == ({(True, "high", True)}, {before})
    left = Loop(Points(), experiment(**said), {"looks": looks}).run()
    next(left)
    left.close()
    failing = Loop(Points(fails=True), experiment(**said), {}).run()
    with pytest.raises(ArithmeticError):
        next(failing)
    assert looks.seen == {(True, "high", True)}
    assert _settings() == before


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
