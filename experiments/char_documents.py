"""Documents of characters: Python's own standard library, cut into functions and classes."""

import re
import string
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

BOUNDARY = 0
"""Token before a document's first character, and behind the last one in a batch. It is never
predicted."""
UNKNOWN = 1
"""Token of any character that is not printable ASCII."""
VOCABULARY = 2 + len(string.printable)
VALIDATION_FILE = 10
"""Every tenth file validates."""
_TOKENS = {character: 2 + index for index, character in enumerate(string.printable)}
_DEFINITION = re.compile(r"^(?=[ \t]*(?:async def|def|class) )", re.MULTILINE)


def encode(text: str) -> Tensor:
    """Return the characters of a text as tokens, (length,) int64."""
    return torch.tensor([_TOKENS.get(character, UNKNOWN) for character in text], dtype=torch.int64)


def split_documents(text: str, longest: int) -> list[str]:
    """Cut a source before each function and class, and again where a piece has more than `longest`
    characters. The joined documents are the source."""
    documents = []
    for piece in _DEFINITION.split(text):
        for begin in range(0, len(piece), longest):
            documents.append(piece[begin : begin + longest])
    return documents


def read_sources(characters: int, folder: Path | None = None) -> list[str]:
    """Read the modules at the top of the standard library, in the order of their names.

    Args:
        characters: Number of characters to read.
        folder: Another folder of modules.

    Raises:
        ValueError: If they come from too few files for validation.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    missing = characters
    for file in sorted(folder.glob("*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")[:missing]
        texts.append(text)
        missing -= len(text)
        if missing <= 0:
            break

    if len(texts) < VALIDATION_FILE:
        raise ValueError(
            f"{characters} characters of {folder} come from {len(texts)} .py files;"
            f" {VALIDATION_FILE} are needed, so that one validates: read more characters, or a"
            " library that is not a zip file"
        )
    return texts


class Documents(Dataset[Tensor]):
    """Documents as tokens, (length,) int64 each."""

    def __init__(self, texts: Sequence[str], longest: int) -> None:
        self.tokens = []
        for text in texts:
            self.tokens += [encode(document) for document in split_documents(text, longest)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]
