from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import RunError, UsageError, open_run, run
from orchestrator.cli import app
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.replay.replay import replay
from tests.orchestrator.runs.several_ranks import create, train, train_on_ranks
from tests.tasks import described

FIELDS: dict[str, Any] = {
    "task_args": {"noisy": True, "dropout": 0.2, "batch_norm": True},
    "accumulate": 2,
    "validate_every": "2 steps",
    "scheduler": {"type": "StepLR", "step_size": 2, "gamma": 0.5},
    "hooks": {
        "ema": {"decay": 0.9},
        "checkpoint": {"every": "1 steps", "keep": 3},
        "json_lines": True,
    },
}


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


class Probe(Hook):
    """Keeps the iterations that it sees."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.heard: list[str] = []
        self.threads = 0

    def on_batch(self, state: State) -> None:
        if state.phase == "train":
            self.seen.append(state.iteration + 1)
            self.threads = torch.get_num_threads()

    def on_exception(self, state: State, error: BaseException) -> None:
        self.heard.append("on_exception")

    def on_end(self, state: State) -> None:
        self.heard.append("on_end")


def test_replay_of_one_rank_is_equal_and_writes_nothing(tmp_path: Path) -> None:
    done = run(described(**FIELDS), tmp_path, local=True)
    done.load_stats()
    before, probe = files(done.path), Probe()
    found = replay(done, 13, hooks={"probe": probe})
    assert found.checkpoint == "step-00000006"
    assert found.is_identical
    assert found.losses["iteration"].tolist() == probe.seen == [12, 13]
    assert probe.heard == ["on_end"]
    assert found.row["same"].all()
    assert {"loss", "lr", "samples", "step", "batch_size"} <= {*found.row.index}
    anew = replay(done, 5)
    assert (anew.checkpoint, anew.is_identical, anew.losses["iteration"].tolist()) == (
        None,
        True,
        [1, 2, 3, 4, 5],
    )
    assert files(done.path) == before
    told = CliRunner().invoke(app, ["replay", str(done.path), "--iteration", "13"])
    assert "with 1 thread: the losses of iterations 12 to 13 are bit-for-bit equal" in told.stdout
    with pytest.raises(UsageError, match="no training row of iteration 99; the last is 14"):
        replay(done, 99)


def test_replay_of_a_loss_that_is_not_a_number_shows_it(tmp_path: Path) -> None:
    found = replay(run(described(optimizer={"type": "SGD", "lr": 1e30}), tmp_path, local=True), 14)
    assert found.row.loc["loss"].isna().tolist() == [True, True, False]
    assert found.row["same"].all()


def test_replay_skips_a_deleted_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, names = run(described(), tmp_path, local=True), CheckpointStore.list_names
    monkeypatch.setattr(CheckpointStore, "list_names", lambda store: [*names(store), "epoch-0009"])
    assert replay(done, 12).checkpoint == "epoch-0001"


def test_replay_fails_where_the_run_failed(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        run(
            described(hooks={"breaks": {"type": "tests.tasks:Breaks", "iteration": 3}}),
            tmp_path,
            local=True,
        )
    failed, probe = open_run(tmp_path / "points"), Probe()
    with pytest.raises(
        RunError, match="hook 'breaks' failed in on_gradients: ZeroDivisionError: broken on purpose"
    ):
        replay(failed, 3, hooks={"probe": probe})
    assert (probe.seen, probe.heard) == ([1, 2, 3], ["on_exception"])
    with pytest.raises(UsageError, match="no training row of iteration 4; the last is 2"):
        replay(failed, 4)
    mended = replay(failed, 3, hooks={"breaks": Probe()})
    assert mended.is_identical
    assert mended.row["stored"].isna().all()


def test_replay_uses_the_threads_of_the_run_and_no_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = described(workers={"count": 1, "cpus": 2}, hooks={"time_limit": {"limit": "1h"}})
    train(0, 1, [create(experiment, tmp_path, "points")])
    probe, clock = Probe(), count(step=3600)
    monkeypatch.setattr("hooks.training.time_limit.monotonic", lambda: next(clock))
    assert replay(open_run(tmp_path / "points"), 12, hooks={"probe": probe}).is_identical
    assert (probe.threads, torch.get_num_threads()) == (2, 1)


@pytest.mark.parametrize(
    ("hook", "answer"),
    [
        ("probe.py", "such as probe.py:Probe; got 'probe.py'"),
        ("", "such as probe.py:Probe; got ''"),
        ("nowhere.py:Probe", "the file nowhere.py does not exist"),
        ("tests.tasks:Points", "--hook tests.tasks:Points: must be a subclass of"),
    ],
)
def test_wrong_hook_is_a_usage_error(hook: str, answer: str) -> None:
    told = CliRunner().invoke(app, ["replay", "runs/points", "--iteration", "3", "--hook", hook])
    assert (told.exit_code, answer in told.stderr) == (2, True)


def test_replay_of_two_ranks_is_equal(tmp_path: Path) -> None:
    experiment = described(**FIELDS, batch_size=4, workers={"count": 2})
    [done] = train_on_ranks(2, tmp_path, points=experiment)
    found = replay(done, 13, rank=1)
    assert found.checkpoint == "step-00000006"
    assert found.is_identical
    assert sorted(found.losses[["rank", "iteration"]].to_numpy().tolist()) == [
        [0, 12],
        [0, 13],
        [1, 12],
        [1, 13],
    ]
    assert found.row["same"].all()
    with pytest.raises(UsageError, match="replayed without a debugger or added hooks"):
        replay(done, 11, hooks={"probe": Probe()})
