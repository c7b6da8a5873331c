"""Each task of the guide on plain loops trains the same weights as its loop."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from orchestrator import run
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT

PAGE = ROOT / "docs" / "guides" / "from_a_loop.md"
LOOPS = re.findall(r"^# study/(\w+)_before.py$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_the_same_before_and_after(folder: Path, loop: str) -> None:
    write_files(PAGE, folder)
    before = importlib.import_module(f"study.{loop}_before")
    after = importlib.import_module(f"study.{loop}")

    done = run(after.experiment, folder / "runs", local=True)

    assert len(LOOPS) == 5
    expected, weights = before.model.state_dict(), done.weights("last")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    if loop == "gan":
        assert done.stats["d_x"].tolist() == before.d_x
    if loop == "classifier":
        assert done.metrics["val/accuracy"].iloc[-1] == before.accuracy
