"""The models that the parts train: ResNet-50 (He et al., 2015, with the stride in the middle),
GPT-2 124M (Radford et al., 2019), and a perceptron of small layers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.char_transformer import Block


def _convolution(channels: int, out: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, out, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(out),
    ]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; puts out four times `width` channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        first, middle, last = (
            _convolution(channels, width, 1),
            _convolution(width, width, 3, stride),
            _convolution(width, 4 * width, 1),
        )
        self.convolutions = nn.Sequential(*first, nn.ReLU(), *middle, nn.ReLU(), *last)
        self.shortcut = nn.Sequential(
            *(
                _convolution(channels, 4 * width, 1, stride)
                if stride > 1 or channels != 4 * width
                else ()
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.convolutions(x) + self.shortcut(x))


def resnet(
    depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
) -> nn.Sequential:
    """(B, 3, H, W) pictures to (B, classes) logits."""
    stem = [*_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels, blocks = width, []
    for stage, depth in enumerate(depths):
        for place in range(depth):
            blocks.append(Bottleneck(channels, width * 2**stage, 2 if stage and not place else 1))
            channels = 4 * width * 2**stage
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


class GPT2(nn.Module):
    """(B, T) tokens to (B, T, vocabulary) logits, whose matrix is that of the tokens."""

    def __init__(
        self,
        vocabulary: int = 50257,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        context: int = 1024,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.width, self.depth, self.context = width, depth, context

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)

    def flops_per_token(self) -> float:
        """Return the FLOPs of training on a token. Source: PaLM (Chowdhery et al., 2022), appendix
        B."""
        parameters = sum(parameter.numel() for parameter in self.parameters())
        return 6.0 * parameters + 12.0 * self.depth * self.width * self.context


def perceptron(width: int = 256, depth: int = 12) -> nn.Sequential:
    """(B, width) numbers to as many: many small layers, so that it is the CPU that limits."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def weights(parameters: int, device: torch.device, tensors: int = 100) -> nn.ParameterList:
    """Return the same number of parameters in tensors of one size."""
    return nn.ParameterList(torch.randn(tensors, parameters // tensors, device=device).unbind())
