"""The methods of the guide on texts leave out padding."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.docs.blocks import read_blocks
from tests.docs.runner import ROOT


def test_padding_counts_neither_as_samples_nor_in_metrics() -> None:
    page = ROOT / "docs" / "guides" / "recurrent_state.md"
    methods = next(block for block in read_blocks(page) if "def collate" in block.text)
    names: dict[str, Any] = {}
    exec(methods.text, names)
    texts = [torch.tensor([3, 1, 2]), torch.tensor([4])]

    batch = names["collate"](None, texts)
    output = torch.randn(2, 3, 5)
    bits = names["metrics"](None, output, batch)["bits_per_character"]

    assert batch[0].tolist() == [[0, 3, 1], [0, 4, 0]]
    assert names["batch_size"](None, batch) == 4 == len(bits)
    nats = functional.cross_entropy(output.flatten(0, 1), batch[1].flatten(), ignore_index=0).item()
    assert bits.mean().item() == pytest.approx(nats / math.log(2))
