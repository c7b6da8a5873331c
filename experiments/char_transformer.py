"""A small causal transformer over characters."""

from torch import Tensor, nn
from torch.nn import functional

from experiments.char_documents import VOCABULARY


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a layer norm and beside a residual
    connection (GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, width) to (B, T, width)."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x))
        parts = parts.view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.perceptron(self.perceptron_norm(x))
        return out


class Transformer(nn.Module):
    """Predicts each character from those before it. No mask is needed for padding: it lies behind
    the last character, where a causal model does not look."""

    def __init__(self, width: int, depth: int, heads: int, longest: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, VOCABULARY, bias=False)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T) to logits (B, T, VOCABULARY) of the character at each place, given those
        to its left."""
        x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.logits(self.norm(self.blocks(x)))
        return logits
