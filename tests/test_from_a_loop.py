"""The loops of docs/from-a-loop.md train the same weights before and after, bit for bit."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from orchestrator import run
from tests.test_documentation import ROOT, write_files

PAGE = ROOT / "docs" / "from-a-loop.md"
LOOPS = re.findall(r"^# study/(\w+)_before.py$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the page's files; what is imported from it is forgotten afterwards."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "study"]:
        del sys.modules[name]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_the_same_before_and_after(folder: Path, loop: str) -> None:
    before, after = (importlib.import_module(f"study.{loop}{part}") for part in ("_before", ""))
    done = run(after.experiment, folder / "runs", local=True)
    assert done.status == "finished"
    expected, weights = before.model.state_dict(), done.weights("last")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    if loop == "gan":
        assert done.stats["d_x"].tolist() == before.d_x
    if loop == "classifier":
        assert done.metrics["val/accuracy"].iloc[-1] == before.accuracy


def test_there_are_five() -> None:
    assert len(LOOPS) == 5
