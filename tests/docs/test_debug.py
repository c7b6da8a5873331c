"""The hook of the guide on debugging stops where it says."""

import sys
from pathlib import Path

import pytest

from orchestrator import load_experiment, run
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT


def test_hook_stops_at_each_high_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(ROOT / "docs" / "guides" / "debug.md", folder)
    stops: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    hook = "hooks.stops={type: 'study.stops:StopsAtHighLoss', above: 1.0}"

    done = run(load_experiment("study/diabetes.yaml", ["epochs=1", hook]), local=True)

    losses = done.stats.query("phase == 'train'")["loss"]
    assert len(stops) == (losses > 1).sum() > 0
