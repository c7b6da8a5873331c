"""The schedules of the guide give the rates of their formulas, and SAM keeps its momentum."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from orchestrator import load_experiment, open_run, run
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT, PageRunner

PAGE = ROOT / "docs" / "guides" / "schedules.md"


def test_cosine_covers_the_whole_run(page_runner: PageRunner) -> None:
    page_runner.run(PAGE)

    train = open_run("runs/cosine").stats.query("phase == 'train' and rank == 0")
    steps = len(train)
    expected = [0.01 * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
    assert train["lr"].tolist() == pytest.approx(expected, abs=1e-9)


def test_sam_trains_and_keeps_its_momentum(folder: Path) -> None:
    write_files(PAGE, folder)
    shutil.copy(ROOT / "tests" / "sam.py", folder / "sam.py")

    done = run(load_experiment("sharp.yaml"), folder / "runs", local=True)

    train = done.stats.query("phase == 'train'")
    assert set(train["evaluations"]) == {2}
    assert train["loss"].iloc[-1] < train["loss"].iloc[0]
    file = Path(done.checkpoint("last")) / "optimizer.pt"
    saved = torch.load(file, weights_only=True)["optimizer"]
    momenta = saved["inner"]["base_optimizer"]["state"].values()
    assert momenta
    assert all(entry["momentum_buffer"].any() for entry in momenta)
