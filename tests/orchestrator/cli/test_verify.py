import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.replay.verify import Continuation

SAME = Continuation("step-00000006", 6, 0, "", [])
DIFFERENT = Continuation(
    "epoch-0002", 8, 2, "the samples of iteration 9 differ", ["the train data: Points.rng"]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "points.yaml"
    written = {"name": "points", "task": "tests.tasks:Points", "epochs": 1, "batch_size": 8}
    path.write_text(json.dumps(written))
    return path


def _verified(monkeypatch: pytest.MonkeyPatch, *continuations: Continuation) -> None:
    def verify(experiment: Any) -> Iterator[Continuation]:
        assert experiment.batch_size == 4
        yield from continuations

    monkeypatch.setattr("orchestrator.replay.verify.verify", verify)


def test_difference_is_printed_with_its_cause_and_exits_with_1(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verified(monkeypatch, SAME, DIFFERENT)
    done = CliRunner().invoke(app, ["verify", str(file), "batch_size=4"])
    assert done.exit_code == 1
    first, second, cause = done.stdout.splitlines()
    assert (
        first
        == "from step-00000006 (iteration 6): the same samples, losses, weights, optimizer and random states"
    )
    assert (
        second
        == "from epoch-0002 (iteration 8, 2 DataLoader workers): the samples of iteration 9 differ"
    )
    assert cause == "  the train data: Points.rng"


def test_equal_training_exits_with_0_and_json_holds_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verified(monkeypatch, SAME)
    done = CliRunner().invoke(app, ["verify", str(file), "batch_size=4", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"ok": True, "continuations": [vars(SAME)]}
