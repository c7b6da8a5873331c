"""Bits per character under counts of n-grams, which a model should beat."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from experiments.char_documents import BOUNDARY, VOCABULARY


def compute_ngram_bits(train: Sequence[Tensor], val: Sequence[Tensor], order: int) -> Tensor:
    """Return the bits of each character of `val` under counts of `train`, shape (characters,).

    Order 1 counts characters, 2 pairs, 3 triples; a document's first characters follow boundaries,
    as for the model. Each order leans on the one below by a Dirichlet prior worth VOCABULARY
    counts, and the first on equal shares, so that nothing is impossible. Source: MacKay and Peto
    1995, A hierarchical Dirichlet language model.
    """
    probability = torch.full((sum(map(len, val)),), 1 / VOCABULARY, dtype=torch.float64)
    for n in range(1, order + 1):
        counts = torch.bincount(_number_ngrams(train, n), minlength=VOCABULARY**n)
        counts_of_contexts = counts.view(-1, VOCABULARY).sum(dim=1)

        predicted = _number_ngrams(val, n)
        contexts = counts_of_contexts[predicted // VOCABULARY]
        probability = (counts[predicted] + VOCABULARY * probability) / (contexts + VOCABULARY)
    return -probability.log2()


def _number_ngrams(texts: Sequence[Tensor], n: int) -> Tensor:
    """Return a number for each character with the n - 1 before it."""
    numbers = []
    for text in texts:
        padded = functional.pad(text, (n - 1, 0), value=BOUNDARY)
        number = torch.zeros_like(text)
        for place in range(n):
            number = number * VOCABULARY + padded[place : place + len(text)]
        numbers.append(number)
    return torch.cat(numbers)
