import math
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from experiments.char_documents import VOCABULARY, Documents, encode, read_sources, split_documents
from experiments.char_lm import CharLM
from experiments.ngrams import compute_ngram_bits
from orchestrator.experiment.optim.component import Component
from orchestrator.loop.loop import Loop
from orchestrator.loop.run_context import RunContext
from orchestrator.loop.world import World
from tests.ranks import on_ranks
from tests.tasks import experiment

SOURCE = '''import os


class Walker:
    """Walks."""

    def walk(self):
        return os

    async def wait(self):
        pass


def undefined(): return "def inside a line"
'''


@dataclass
class Small(CharLM):
    """Eleven documents of 3 to 23 characters, of which four validate."""

    longest: int = 23
    width: int = 8
    depth: int = 1
    heads: int = 2

    def data(self) -> dict[str, Dataset[Any]]:
        texts = ["abcdefghijklmnopqrstuvwxyz"[: 3 + 2 * size] for size in range(11)]
        return {
            "train": Documents(texts[4:], self.longest),
            "val": Documents(texts[:3] + texts[10:], self.longest),
        }


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return dict(CharLM(characters=200_000).data())


@pytest.fixture
def task() -> CharLM:
    torch.manual_seed(0)
    return CharLM(longest=32, width=16, depth=2, heads=4)


# Data


def test_documents_begin_at_functions_and_classes_and_are_the_whole_source() -> None:
    pieces = split_documents(SOURCE, 1000)
    assert "".join(pieces) == SOURCE
    assert [piece.split("(")[0].split(":")[0].strip() for piece in pieces] == [
        "import os",
        "class Walker",
        "def walk",
        "async def wait",
        "def undefined",
    ]


def test_the_data_is_the_standard_library_s_first_files_split_by_file(data: dict[str, Any]) -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in files[:60])[
        :200_000
    ]
    parts = [torch.cat(part.tokens) for part in (data["train"], data["val"])]
    assert sorted(torch.cat(parts).tolist()) == sorted(encode(text).tolist())
    tenth = encode(read_sources(200_000)[9])
    assert torch.equal(parts[1][: len(tenth)], tenth)


def test_too_few_files_to_validate_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"10000 characters of .* come from 0 \.py files; 10 are needed"
    ):
        read_sources(10_000, tmp_path)
    for index in range(9):
        (tmp_path / f"{index}.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"come from 9 \.py files"):
        read_sources(10_000, tmp_path)
    (tmp_path / "z.py").write_text("y = 2\n")
    assert read_sources(10_000, tmp_path) == ["x = 1\n"] * 9 + ["y = 2\n"]


# The model


@pytest.mark.parametrize("place", [1, 7, 19])
def test_later_characters_do_not_change_earlier_predictions(task: CharLM, place: int) -> None:
    model = task.model()
    tokens = torch.randint(1, VOCABULARY, (2, 20))
    other = tokens.clone()
    other[:, place] = tokens[:, place] % (VOCABULARY - 1) + 1
    before, after = model(tokens), model(other)
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.isclose(before[:, place:], after[:, place:]).all(dim=2).any()


# Uneven lengths


def test_bits_per_character_by_hand(task: CharLM) -> None:
    batch = task.collate([torch.tensor([2, 3]), torch.tensor([2])])
    # the model says 2 with 1/2 and 3 with 1/8, everywhere
    logits = torch.full((VOCABULARY,), -math.inf)
    logits[[2, 3, 4]] = torch.tensor([1 / 2, 1 / 8, 3 / 8]).log()
    output = logits.expand(2, 2, VOCABULARY)
    assert task.metrics(output, batch)["bits_per_character"].tolist() == pytest.approx([1, 3, 1])
    assert task.loss(output, batch).item() == pytest.approx(5 / 3 * math.log(2))


def _validate(rank: int, world_size: int) -> dict[str, float]:
    still = Component(type="SGD", lr=0.0)
    fields = experiment(steps=1, batch_size=3, optimizer=still, loader={"eval_batch_size": 2})
    loop = Loop(Small(), fields, {}, RunContext(world=World(rank, world_size, rank)))
    (report,) = loop.run()
    return dict(report.metrics)


def test_every_character_of_all_ranks_weighs_the_same() -> None:
    torch.manual_seed(0)
    task = Small()
    model = task.model()
    bits = []
    for document in task.data()["val"]:
        inputs, targets, _ = task.collate([document])
        bits += functional.cross_entropy(model(inputs)[0], targets[0], reduction="none").tolist()
    assert len(bits) == 3 + 5 + 7 + 23
    nats = sum(bits) / len(bits)
    for metrics in [_validate(0, 1), *on_ranks(_validate)]:
        assert metrics["val/loss"] == pytest.approx(nats, rel=1e-6)
        assert metrics["val/bits_per_character"] == pytest.approx(nats / math.log(2), rel=1e-6)


# The baselines


def test_counting_by_hand() -> None:
    train, val = [encode("aab")], [encode("ab")]
    share = 1 / VOCABULARY
    a, b = (2 + VOCABULARY * share) / (3 + VOCABULARY), (1 + VOCABULARY * share) / (3 + VOCABULARY)
    assert compute_ngram_bits(train, val, 1).tolist() == pytest.approx(
        [-math.log2(a), -math.log2(b)]
    )
    # a follows the boundary once of once, b follows a once of twice
    first, second = (1 + VOCABULARY * a) / (1 + VOCABULARY), (1 + VOCABULARY * b) / (2 + VOCABULARY)
    assert compute_ngram_bits(train, val, 2).tolist() == pytest.approx(
        [-math.log2(first), -math.log2(second)]
    )


def test_model_beats_a_bigram_model() -> None:
    """A random word three times: two thirds of each document follow from the first."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcd", k=4)) for _ in range(64)]
    texts: list[Tensor] = [encode(word * 3) for word in words]
    torch.manual_seed(0)
    task = CharLM(longest=12, width=32, depth=2, heads=4)
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = task.collate(texts)
    for _ in range(60):
        optimizer.zero_grad()
        loss = task.loss(task.forward(model, batch), batch)
        loss.backward()
        optimizer.step()
    assert loss.item() / math.log(2) < compute_ngram_bits(texts, texts, 2).mean().item() - 0.5
