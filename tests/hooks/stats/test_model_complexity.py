"""Parameters, FLOPs and activations against sums by hand."""

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hooks import State
from hooks.stats.model_complexity import ModelComplexity
from tests.hooks.phases import Screen


def count(module: nn.Module, batch: Any, folder: Path, **fields: Any) -> State:
    state = State(
        module=module,
        model=module,
        artifacts=folder,
        display=Screen(),
        fresh_batches=lambda phase: iter([batch]),
    )
    ModelComplexity(**fields).on_start(state)
    return state


def table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "model_complexity.csv").open(newline="") as file:
        return {row.pop("module"): row for row in csv.DictReader(file)}


def shown(state: State) -> list[str]:
    assert isinstance(state.display, Screen)
    return state.display.lines


def test_a_convolutional_network_by_hand(tmp_path: Path) -> None:
    """3x8x8 images: a 3x3 convolution to 4 channels without padding gives 4x6x6, then 10
    classes."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    module[0].requires_grad_(False)
    state = count(module, (torch.randn(5, 3, 8, 8),), tmp_path)
    convolution = 2 * 4 * 36 * 27
    linear = 2 * 144 * 10
    assert state.info == {
        "parameters": 112 + 1450,
        "trainable_parameters": 1450,
        "flops_per_sample": convolution + linear,
        "macs_per_sample": (convolution + linear) // 2,
        "activations_per_sample": 144 + 10,
    }
    rows = table(tmp_path)
    assert list(rows) == ["", "0", "1", "2", "3"]
    assert [int(row["flops_per_sample"]) for row in rows.values()] == [
        convolution + linear,
        convolution,
        0,
        0,
        linear,
    ]
    assert [int(row["macs_per_sample"]) for row in rows.values()] == [5328, 3888, 0, 0, 1440]
    assert [int(row["activations_per_sample"]) for row in rows.values()] == [154, 144, 0, 0, 10]
    assert [int(row["parameters"]) for row in rows.values()] == [1562, 112, 0, 0, 1450]
    assert rows["0"]["type"] == "Conv2d"
    assert shown(state) == [
        "model: 1,562 parameters (1,450 trainable)",
        "forward pass of a sample: 10,656 FLOPs (5,328 MACs) and 154 activations",
    ]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    )


def added_by_classyvision(layer: nn.Module, inputs: Tensor) -> int:
    """What its profiler counts for a layer beside multiplications; VISSL uses the same profiler."""
    if isinstance(layer, nn.ReLU | nn.Dropout):
        return inputs.numel()
    if isinstance(layer, nn.BatchNorm2d):
        return 2 * inputs.numel()
    return len(inputs) * layer.bias.numel() if isinstance(layer, nn.Linear) else 0


@pytest.mark.parametrize(
    ("module", "shape", "macs", "theirs"),
    [
        (perceptron(), (64,), 4736, 4938),
        (convolutions(), (1, 8, 8), 165_888, 173_568),
        (nn.Sequential(nn.Conv1d(4, 8, 3, groups=2)), (4, 20), 864, 864),
    ],
    ids=["perceptron", "convolutions", "groups"],
)
def test_macs_are_the_flops_of_classyvision_without_what_it_adds(
    module: nn.Sequential, shape: tuple[int, ...], macs: int, theirs: int, tmp_path: Path
) -> None:
    inputs = torch.randn(1, *shape)
    state = count(module, (inputs,), tmp_path)
    added = 0
    for layer in module.eval():
        added += added_by_classyvision(layer, inputs)
        inputs = layer(inputs)
    assert state.info["macs_per_sample"] == macs
    assert macs + added == theirs


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = width // before
        self.layers = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def test_resnet_18_has_the_published_flops_and_activations(tmp_path: Path) -> None:
    """ClassyVision and VISSL at 224x224: 11.69 M parameters, 1.81 G multiply-adds, 2.48 M
    activations."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    stem = (
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    blocks = [Block(before, width) for before, width in pairwise(widths)]
    resnet = nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
    )
    state = count(resnet, (torch.randn(1, 3, 224, 224),), tmp_path)
    # the stem, then for each width its convolutions of 3x3 and the one of 1x1, and the classes
    macs = (
        147 * 64 * 112**2
        + 4 * 9 * 64**2 * 56**2
        + 3 * (3 * 9 + 4.5 + 0.5) * 128**2 * 28**2
        + 512 * 1000
    )
    assert state.info["parameters"] == 11_689_512
    assert state.info["macs_per_sample"] == macs == 1_814_073_344
    assert state.info["flops_per_sample"] == 2 * macs
    assert (
        state.info["activations_per_sample"]
        == 64 * 112**2 + 4 * 64 * 56**2 + 5 * (128 * 28**2 + 256 * 14**2 + 512 * 7**2) + 1000
        == 2_484_712
    )


LAYERS = {
    "linear": (nn.Linear(8, 10), (8,), 10),
    "linear over positions": (nn.Linear(8, 10), (5, 8), 50),
    "conv1d": (nn.Conv1d(2, 4, 3), (2, 8), 4 * 6),
    "conv2d": (nn.Conv2d(2, 4, 3, stride=2), (2, 9, 9), 4 * 16),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 4, 4, 4), 2 * 27),
    "transposed": (nn.ConvTranspose2d(2, 4, 3), (2, 4, 4), 0),
    "norm": (nn.BatchNorm1d(8), (8,), 0),
    "activation function": (nn.ReLU(), (8,), 0),
    "perceptron": (nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,), 74),
}
"""Layers, a sample's shape, and the activations that ClassyVision 0.7 counts: outputs of linear and
conv layers."""


@pytest.mark.parametrize("layer", LAYERS)
def test_activations_count_the_layers_that_classyvision_counts(layer: str, tmp_path: Path) -> None:
    module, shape, activations = LAYERS[layer]
    assert (
        count(module, (torch.randn(3, *shape),), tmp_path).info["activations_per_sample"]
        == activations
    )


@pytest.mark.parametrize("kind", ["attention", "lstm"])
def test_fused_layers_are_counted(kind: str, tmp_path: Path) -> None:
    """In eval mode torch runs a transformer layer, or an LSTM, as one call, of which the counter
    knows nothing. With width d, f in the feed-forward part and s positions: 8sd^2 for the
    projections, 4s^2d for the attention, 4sdf behind it; in an LSTM four gates of d + f inputs and
    f outputs."""
    d = 8
    f = 16
    s = 6
    is_lstm = kind == "lstm"
    module: nn.Module = nn.TransformerEncoderLayer(d, 2, f, batch_first=True)
    if is_lstm:
        module = nn.LSTM(d, f, batch_first=True)
    libraries: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.mkldnn)
    before = torch.backends.mha.get_fastpath_enabled(), [library.enabled for library in libraries]
    state = count(module, (torch.randn(3, s, d),), tmp_path)
    attention = 8 * s * d * d + 4 * s * s * d + 4 * s * d * f
    assert state.info["flops_per_sample"] == (2 * s * 4 * f * (d + f) if is_lstm else attention)
    assert (
        torch.backends.mha.get_fastpath_enabled(),
        [library.enabled for library in libraries],
    ) == before


def test_depth_limits_the_rows_and_containers_sum_up(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2)))
    count(nn.Sequential(inner, nn.Linear(2, 1)), (torch.randn(2, 4),), tmp_path, max_depth=1)
    rows = table(tmp_path)
    assert list(rows) == ["", "0", "1"]
    assert [int(row["flops_per_sample"]) for row in rows.values()] == [
        2 * (16 + 8 + 2),
        2 * (16 + 8),
        4,
    ]


def test_shared_weights_count_once_and_each_use_costs(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv1d(1, 1, 1, bias=False)

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"first": self.mix(x), "second": [self.mix(x)]}

    state = count(Twice(), (torch.randn(3, 1, 4),), tmp_path)
    assert state.info["parameters"] == 1
    assert state.info["flops_per_sample"] == 2 * 2 * 4
    assert state.info["activations_per_sample"] == 8


def test_a_model_that_cannot_be_counted_gives_a_note(tmp_path: Path) -> None:
    class Refuses(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("only on Tuesdays")

    module = nn.Sequential(Refuses(2, 2))
    state = count(module, (torch.randn(1, 2),), tmp_path)
    assert shown(state) == [
        "model: 6 parameters (6 trainable)",
        "model_complexity: cannot count the FLOPs of the model: NotImplementedError: only on Tuesdays",
    ]
    assert state.info == {"parameters": 6, "trainable_parameters": 6}
    assert module.training
    assert not module[0]._forward_hooks
    assert not module[0]._forward_pre_hooks


def test_one_of_each_has_no_plural(tmp_path: Path) -> None:
    """A weight, times one number."""
    state = count(nn.Linear(1, 1, bias=False), (torch.ones(1, 1),), tmp_path)
    assert shown(state) == [
        "model: 1 parameter (1 trainable)",
        "forward pass of a sample: 2 FLOPs (1 MAC) and 1 activation",
    ]


def test_note_names_the_parameters_if_they_cannot_be_counted(tmp_path: Path) -> None:
    class Uncountable(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            raise RuntimeError("not built yet")

    state = State(module=nn.Linear(2, 1), artifacts=tmp_path, display=Screen())
    state.module = Uncountable(2, 1)
    ModelComplexity().on_start(state)
    assert shown(state) == [
        "model_complexity: cannot count the parameters of the model: RuntimeError: not built yet"
    ]
