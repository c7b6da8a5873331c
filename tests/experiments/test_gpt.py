from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.gpt import GPT, Sources
from orchestrator.loop.loop import Loop
from tests.tasks import experiment


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    for place, size in enumerate((23, 3, 40)):
        (tmp_path / f"{place}.py").write_bytes(bytes(range(place * 50, place * 50 + size)))
    return Sources(sorted(tmp_path.glob("*.py")), context=4)


def test_a_block_is_of_one_file_and_each_epoch_has_another_order(sources: Sources) -> None:
    orders = []
    for epoch in range(4):
        sources.set_epoch(epoch)
        blocks = torch.stack(list(sources))
        assert sorted(blocks.flatten().tolist()) == [*range(20), *range(100, 140)]
        assert torch.equal(blocks[:, 1:], blocks[:, :-1] + 1)
        orders.append(blocks.tolist())
    assert any(order != orders[0] for order in orders)


def test_stream_resumes_at_any_block(sources: Sources) -> None:
    whole = torch.stack(list(sources))
    for given in range(1, len(whole)):
        before: Any = iter(sources)
        for _ in range(given):
            next(before)
        again: Any = iter(sources)
        again.load_state_dict(before.state_dict())
        assert torch.equal(torch.stack(list(again)), whole[given:])


def test_it_learns() -> None:
    pytest.importorskip("transformers")
    task = GPT(width=16, depth=1, heads=2, context=16, files=12)
    optimizer = {"type": "AdamW", "lr": 1e-2, "groups": ["no_decay"]}
    fields = {
        "steps": 20,
        "epoch_steps": 10,
        "accumulate": 2,
        "precision": "bf16",
        "batch_size": 4,
        "validate_every": 0,
    }
    reports = [
        report.metrics
        for report in Loop(task, experiment(**{**fields, "optimizer": optimizer}), {}).run()
    ]
    assert reports[1]["train/bits_per_byte"] < reports[0]["train/bits_per_byte"] < 9
