from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import UsageError, run
from orchestrator.cli import app
from orchestrator.config.load import to_yaml
from orchestrator.engines.session import Assignment, Session
from orchestrator.loop.world import World
from orchestrator.records.run_folder import RunFolder
from orchestrator.runs.replay import replay
from orchestrator.runs.result import Run
from tests import ranks
from tests.tasks import described

FIELDS: dict[str, Any] = {
    "task_args": {"noisy": True, "dropout": 0.2, "batch_norm": True},
    "accumulate": 2,
    "validate_every": "2 steps",
    "scheduler": {"type": "StepLR", "step_size": 2, "gamma": 0.5},
    "hooks": {"ema": {"decay": 0.9}, "checkpoint": {"every": "1 steps", "keep": 3}, "json_lines": True},
}


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


class Probe(Hook):
    """Keeps the iterations that it sees."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.seen.append(state.iteration + 1)


def test_one_rank_comes_to_the_same_numbers_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    done = run(described(**FIELDS), tmp_path, local=True)
    done.load_stats()
    before, probe = files(done.path), Probe()
    found = replay(done, 13, hooks={"probe": probe})
    assert found.checkpoint == "step-00000006"
    assert found.agrees
    assert found.losses["iteration"].tolist() == probe.seen == [12, 13]
    assert found.row["same"].all()
    assert {"loss", "lr", "samples", "step", "batch_size"} <= {*found.row.index}
    anew = replay(done, 5)
    assert (anew.checkpoint, anew.agrees, anew.losses["iteration"].tolist()) == (None, True, [1, 2, 3, 4, 5])
    assert files(done.path) == before
    told = CliRunner().invoke(app, ["replay", done.path, "--iteration", "13"])
    assert "the losses of iterations 12 to 13 agree bit for bit with the stored ones" in told.stdout
    with pytest.raises(UsageError, match="no training row of iteration 99 on rank 0"):
        replay(done, 99)


def _train(rank: int, world_size: int, given: Assignment) -> None:
    list(Session(given, World(rank, world_size, rank)).reports())


def test_two_ranks_come_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = described(**FIELDS, batch_size=4, workers={"count": 2})
    folder = RunFolder.create(tmp_path, "points", to_yaml(experiment))
    ranks.on_ranks(_train, 2, Assignment(experiment.source, str(folder)))
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: ranks._context)  # whose processes have torch already
    found = replay(Run(folder), 13, rank=1)
    assert found.checkpoint == "step-00000006"
    assert found.agrees
    assert sorted(found.losses[["rank", "iteration"]].to_numpy().tolist()) == [[0, 12], [0, 13], [1, 12], [1, 13]]
    assert found.row["same"].all()
    with pytest.raises(UsageError, match="replayed in processes over gloo, without a debugger or a hook"):
        replay(Run(folder), 11, hooks={"probe": Probe()})
