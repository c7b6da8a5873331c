"""A character-level language model of Python's own standard library: documents of uneven length."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from experiments.char_documents import BOUNDARY, VALIDATION_FILE, Documents, read_sources
from experiments.char_transformer import Transformer
from experiments.ngrams import compute_ngram_bits
from orchestrator import Task


@dataclass
class CharLM(Task):
    """Learns to write Python, character by character, from the standard library of the Python that
    runs it.

    A document is a function, a class's head or what stands between them, and at most `longest`
    characters of it; each starts from scratch. Every tenth file validates, so no function is split
    between training and validation. The text is that of the installed Python, so numbers differ a
    little from one to another.

    A batch is `(inputs, targets, lengths)`, the first two (B, T) int64 with T the longest of the
    batch: the targets are the characters, the inputs the same moved by one. The lengths are B plain
    numbers, so that nobody asks a GPU for them. A *sample* is a character: the loss, the metrics
    and the count of samples are over characters that are there, never over padding.
    """

    characters: Annotated[int, Ge(10_000)] = 1_500_000
    """Characters of the standard library that are read."""
    longest: Annotated[int, Ge(2)] = 256
    """Characters of the longest document."""
    width: Annotated[int, Gt(0)] = 96
    """Size of the vector for a character within the model; a multiple of `heads`."""
    depth: Annotated[int, Gt(0)] = 3
    """Blocks of attention and perceptron."""
    heads: Annotated[int, Gt(0)] = 4
    """Heads of attention in each block."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")

    def model(self) -> nn.Module:
        """Return the model, from tokens (B, T) to logits (B, T, VOCABULARY)."""
        return Transformer(self.width, self.depth, self.heads, self.longest)

    def data(self) -> Mapping[str, Dataset[Any]]:
        """Return `train` and `val`, split by file: the same in every run on the same Python."""
        train = read_sources(self.characters)
        validating = slice(VALIDATION_FILE - 1, None, VALIDATION_FILE)
        val = train[validating]
        del train[validating]
        return {"train": Documents(train, self.longest), "val": Documents(val, self.longest)}

    def collate(self, samples: list[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
        """Pad documents to the longest of the batch."""
        targets = pad_sequence(samples, batch_first=True, padding_value=BOUNDARY)
        inputs = functional.pad(targets, (1, -1), value=BOUNDARY)
        return inputs, targets, [len(sample) for sample in samples]

    def batch_size(self, batch: Any) -> int:
        """Return the number of characters, without padding."""
        return sum(batch[2])

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        """Return the cross entropy in nats, the mean over the batch's characters."""
        return functional.cross_entropy(
            output.flatten(0, 1), batch[1].flatten(), ignore_index=BOUNDARY
        )

    def metrics(self, output: Tensor, batch: Any) -> Mapping[str, Tensor]:
        """Return `bits_per_character`: the cost of each character given those before it, shape
        (characters,)."""
        targets = batch[1].flatten()
        # Told how many there are, torch need not wait for a GPU that counts them, as it would for a
        # mask.
        places = (targets != BOUNDARY).nonzero_static(size=self.batch_size(batch)).squeeze(1)
        logits = output.flatten(0, 1)[places]
        nats = functional.cross_entropy(logits, targets[places], reduction="none")
        return {"bits_per_character": nats / math.log(2)}


def compute_baselines(task: CharLM) -> Iterator[tuple[int, float]]:
    """Yield orders 1 to 3 of n-grams, each with its bits per character on the task's own validation
    data."""
    data: Any = task.data()
    for order in (1, 2, 3):
        bits = compute_ngram_bits(data["train"].tokens, data["val"].tokens, order)
        yield order, bits.mean().item()


if __name__ == "__main__":
    for order, bits in compute_baselines(CharLM()):
        print(f"{order}-gram: {bits:.3f} bits per character")
