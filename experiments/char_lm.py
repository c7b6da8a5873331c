"""A character-level language model of Python's own standard library: documents of uneven length."""

import math
import re
import string
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from orchestrator import Task

BOUNDARY = 0
"""Stands before a document's first character and fills a batch behind a document's last; it is
never predicted."""
UNKNOWN = 1
"""Any character that is not printable ASCII."""
VOCABULARY = 2 + len(string.printable)
VALIDATION_FILE = 10
"""Every tenth file validates."""

_TOKEN = {character: 2 + index for index, character in enumerate(string.printable)}
_DEFINITION = re.compile(r"^(?=[ \t]*(?:async def|def|class) )", re.MULTILINE)


def encode(text: str) -> Tensor:
    """The characters of a text as tokens, (length,) int64."""
    return torch.tensor([_TOKEN.get(character, UNKNOWN) for character in text], dtype=torch.int64)


def documents(text: str, longest: int) -> list[str]:
    """A source cut before each function and class, and again where a piece has more than `longest`
    characters; joined they are the source."""
    pieces = [piece for piece in _DEFINITION.split(text) if piece]
    return [
        piece[begin : begin + longest]
        for piece in pieces
        for begin in range(0, len(piece), longest)
    ]


def sources(characters: int, folder: Path | None = None) -> list[str]:
    """The texts of the modules at the top of the standard library, in the order of their names, up
    to `characters`."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for file in sorted(folder.glob("*.py")):
        texts.append(
            file.read_text(encoding="utf-8", errors="replace")[: characters - sum(map(len, texts))]
        )
        if sum(map(len, texts)) >= characters:
            break
    if len(texts) < VALIDATION_FILE:
        message = f"{characters} characters of {folder} come from {len(texts)} .py files"
        raise ValueError(
            f"{message}; {VALIDATION_FILE} are needed, so that one validates: read more characters, or a library that"
            " is not a zip file"
        )
    return texts


class Documents(Dataset[Tensor]):
    """Documents as tokens, (length,) int64 each."""

    def __init__(self, texts: Sequence[str], longest: int) -> None:
        self.tokens = [encode(document) for text in texts for document in documents(text, longest)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a layer norm and beside a residual
    connection (GPT-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to (B, T, width)."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).view(
            batch, length, 3, self.heads, width // self.heads
        )
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
        """(B, T) tokens to (B, T, VOCABULARY) logits of the character at each place, given those to
        its left."""
        x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.logits(self.norm(self.blocks(x)))
        return logits


@dataclass
class CharLM(Task):
    """Learns to write Python, character by character, from the standard library of the Python that
    runs it.

    A document is a function, a class's head or what stands between them, and at most `longest`
    characters of it; each starts from scratch. Every tenth file validates, so no function is split
    between training and validation. A batch is `(inputs, targets, lengths)`, the first two (B, T)
    int64 with T the longest of the batch: the targets are the characters, the inputs the same moved
    by one. The lengths are B plain numbers, so that nobody asks a GPU for them. A *sample* is a
    character: the loss, the metrics and the count of samples are over characters that are there,
        never over padding. The text is that of the installed Python, so numbers differ a little
        from one to another.
    """

    characters: Annotated[int, Ge(10_000)] = 1_500_000
    """How much of the standard library is read."""
    longest: Annotated[int, Ge(2)] = 256
    """Characters of the longest document."""
    width: Annotated[int, Gt(0)] = 96
    """Size of what stands for a character within the model; a multiple of `heads`."""
    depth: Annotated[int, Gt(0)] = 3
    """Blocks of attention and perceptron."""
    heads: Annotated[int, Gt(0)] = 4
    """Heads of attention in each block."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")

    def model(self) -> nn.Module:
        """(B, T) tokens to (B, T, VOCABULARY) logits."""
        return Transformer(self.width, self.depth, self.heads, self.longest)

    def data(self) -> Mapping[str, Dataset[Any]]:
        """`train` and `val`, split by file: the same in every run on the same Python."""
        texts = sources(self.characters)
        val = texts[VALIDATION_FILE - 1 :: VALIDATION_FILE]
        train = [
            text
            for index, text in enumerate(texts)
            if index % VALIDATION_FILE != VALIDATION_FILE - 1
        ]
        return {"train": Documents(train, self.longest), "val": Documents(val, self.longest)}

    def collate(self, samples: list[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
        """Pads documents to the longest of the batch."""
        targets = pad_sequence(samples, batch_first=True, padding_value=BOUNDARY)
        return (
            functional.pad(targets, (1, -1), value=BOUNDARY),
            targets,
            [len(sample) for sample in samples],
        )

    def batch_size(self, batch: Any) -> int:
        """The characters that are there."""
        return sum(batch[2])

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        """Cross entropy in nats, the mean over the batch's characters."""
        return functional.cross_entropy(
            output.flatten(0, 1), batch[1].flatten(), ignore_index=BOUNDARY
        )

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        """Return `bits_per_character`: the cost of each character given those before it, shape
        (characters,)."""
        targets = batch[1].flatten()
        # Told how many there are, torch need not wait for a GPU that counts them, as it would for a
        # mask.
        there = (targets != BOUNDARY).nonzero_static(size=self.batch_size(batch)).squeeze(1)
        return {
            "bits_per_character": (
                functional.cross_entropy(
                    output.flatten(0, 1)[there], targets[there], reduction="none"
                )
                / math.log(2)
            )
        }


def ngram_bits(train: Sequence[Tensor], val: Sequence[Tensor], order: int) -> Tensor:
    """Return the bits of each character of `val` under counts of `train`, shape (characters,).

    Order 1 counts characters, 2 pairs, 3 triples; a document's first characters follow boundaries,
    as for the model. Each order leans on the one below by a Dirichlet prior worth VOCABULARY
    counts, and the first on equal shares, so that nothing is impossible. Source: MacKay and Peto
    1995, A hierarchical Dirichlet language model.
    """
    probability = torch.full((sum(map(len, val)),), 1 / VOCABULARY, dtype=torch.float64)
    for n in range(1, order + 1):
        seen, predicted = _ngrams(train, n), _ngrams(val, n)
        counts = torch.bincount(seen, minlength=VOCABULARY**n)
        contexts = counts.view(-1, VOCABULARY).sum(dim=1)
        probability = (counts[predicted] + VOCABULARY * probability) / (
            contexts[predicted // VOCABULARY] + VOCABULARY
        )
    return -probability.log2()


def _ngrams(texts: Sequence[Tensor], n: int) -> Tensor:
    """Each character with the n - 1 before it, as one number."""
    return torch.cat([_ngrams_of(text, n) for text in texts])


def _ngrams_of(text: Tensor, n: int) -> Tensor:
    padded = functional.pad(text, (n - 1, 0), value=BOUNDARY)
    return sum(
        (padded[place : place + len(text)] * VOCABULARY ** (n - 1 - place) for place in range(n)),
        torch.zeros_like(text),
    )


def baselines(task: CharLM) -> Iterator[tuple[int, float]]:
    """The order of a count and its bits per character on the task's own validation data, for orders
    1 to 3."""
    data: Any = task.data()
    for order in (1, 2, 3):
        yield order, ngram_bits(data["train"].tokens, data["val"].tokens, order).mean().item()


if __name__ == "__main__":
    for order, bits in baselines(CharLM()):
        print(f"{order}-gram: {bits:.3f} bits per character")
