"""A GPT of Hugging Face's transformers on a stream: the source files of Python's own standard
library, byte by byte.

Needs transformers: `pip install "hookyard[demo,transformers]"`.
"""

import math
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from orchestrator import Task

VALIDATION_FILE = 10
"""Every tenth file validates."""


class Sources(IterableDataset[Tensor]):
    """The bytes of some files in blocks, (context + 1,) int64 each; a file's last bytes that fill
    none are left out. In each epoch the files come in another order."""

    def __init__(self, files: Sequence[Path], context: int) -> None:
        self.files = files
        self.context = context
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the files."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        return _Blocks(self)


class _Blocks(Iterator[Tensor]):
    """Goes through the files, and keeps its place: which file is being read, and how many of its
    blocks were given."""

    def __init__(self, sources: Sources) -> None:
        generator = torch.Generator().manual_seed(sources.epoch)
        self._files = sources.files
        self._order = torch.randperm(len(sources.files), generator=generator).tolist()
        self._size = sources.context + 1
        self._file = -1
        self._block = 0
        self._blocks = torch.empty(0, self._size)

    def __next__(self) -> Tensor:
        while self._block == len(self._blocks):
            if self._file + 1 == len(self._order):
                raise StopIteration
            self._open(self._file + 1)
        self._block += 1
        return self._blocks[self._block - 1]

    def _open(self, file: int) -> None:
        text = self._files[self._order[file]].read_bytes()
        whole = len(text) // self._size
        tokens = torch.tensor(list(text[: whole * self._size]), dtype=torch.int64)
        self._blocks = tokens.reshape(whole, self._size)
        self._file = file
        self._block = 0

    def state_dict(self) -> dict[str, int]:
        """Return the place, as numbers."""
        return {"file": self._file, "block": self._block}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Open the file that was being read."""
        self._open(state["file"])
        self._block = state["block"]


@dataclass
class GPT(Task):
    """Predicts the next byte of a program."""

    width: int = 128
    depth: int = 4
    heads: int = 4
    context: int = 128
    """Bytes from which the next one is predicted."""
    files: int = 200
    """Modules of the standard library that are read, in the order of their names."""

    def model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {
            "n_embd": self.width,
            "n_layer": self.depth,
            "n_head": self.heads,
            "n_positions": self.context,
        }
        model: nn.Module = GPT2LMHeadModel(
            GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, use_cache=False, **sizes)
        )
        return model

    def data(self) -> Mapping[str, Any]:
        return {phase: Sources(self.list_files(phase), self.context) for phase in ("train", "val")}

    def list_files(self, phase: str) -> list[Path]:
        """Return the files of `train` or `val`."""
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: self.files]
        if phase == "val":
            return files[::VALIDATION_FILE]
        return [file for place, file in enumerate(files) if place % VALIDATION_FILE]

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=batch[:, :-1]).logits
        return logits.flatten(0, 1)

    def loss(self, output: Tensor, batch: Tensor) -> Tensor:
        return functional.cross_entropy(output, batch[:, 1:].flatten())

    def metrics(self, output: Tensor, batch: Tensor) -> Mapping[str, Tensor]:
        nats = functional.cross_entropy(output.float(), batch[:, 1:].flatten(), reduction="none")
        return {"bits_per_byte": nats / math.log(2)}

    def batch_size(self, batch: Tensor) -> int:
        return batch[:, 1:].numel()
