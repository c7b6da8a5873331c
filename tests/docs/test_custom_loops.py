"""The loops of the guide on custom loops learn what the guide says."""

from pathlib import Path

import pytest

from orchestrator import load_experiment, run
from tests.docs.blocks import write_files
from tests.docs.runner import ROOT

PAGE = ROOT / "docs" / "guides" / "custom_loops.md"


def test_plane_is_fitted(folder: Path) -> None:
    write_files(PAGE, folder)

    done = run(load_experiment("study/ranks.yaml", ["workers.count=1"]), local=True)

    assert done.metrics["samples"].tolist() == [640, 1280, 1920]
    assert done.weights("best")["weight"].tolist()[0] == pytest.approx([1, 1, 1], abs=0.1)


def test_policy_learns_the_best_moves(folder: Path) -> None:
    write_files(PAGE, folder)

    done = run(load_experiment("study/line.yaml", ["task=study.policy:Policy"]), local=True)

    moves = done.weights("last")["weight"].argmax(dim=1).tolist()
    assert moves[:2] == [0, 0]
    assert moves[3:] == [1, 1]
