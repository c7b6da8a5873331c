from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator import UsageError, open_run, run
from orchestrator.disk.new_run import create_run
from orchestrator.errors import CheckpointError
from orchestrator.runs.result import Run
from tests.tasks import described

HOOKS: dict[str, Any] = {"checkpoint": {"keep": 1, "best": "val/loss"}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(described(hooks=HOOKS), tmp_path_factory.mktemp("runs"), local=True)


def test_path_is_a_path_here_and_a_url_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create_run("runs", "new", "hooks: {}\n")
    opened = open_run("runs/new")
    monkeypatch.chdir("/")
    assert opened.path == tmp_path / "runs/new"
    assert isinstance(opened.path, Path)
    assert Run(create_run("memory://paths", "new", "hooks: {}\n")).path == "memory://paths/new"


def test_open_run_has_all_of_a_run(done: Run) -> None:
    again = open_run(done.path)
    assert (again.name, again.path, again.status, again.error) == (
        "points",
        done.path,
        "finished",
        None,
    )
    assert repr(again) == f"Run({str(done.path)!r}, status='finished')"
    pd.testing.assert_frame_equal(again.stats, done.stats)
    pd.testing.assert_frame_equal(again.metrics, done.metrics)
    pd.testing.assert_frame_equal(again.hook_costs, done.hook_costs)
    assert again.config == done.config
    assert again.config["optimizer"] == {"type": "SGD", "lr": 0.1, "momentum": 0.9}


def test_checkpoints_by_label_and_by_name(done: Run) -> None:
    last = Path(done.path) / "checkpoints/epoch-0002"
    assert done.checkpoint() == done.checkpoint("last") == done.checkpoint("epoch-0002") == last
    losses = done.metrics["val/loss"].tolist()
    best = losses.index(min(losses)) + 1
    assert done.checkpoint("best") == Path(done.path) / f"checkpoints/epoch-000{best}"
    with pytest.raises(CheckpointError, match="no checkpoint 'worst'"):
        done.checkpoint("worst")


def test_summaries(done: Run) -> None:
    assert {"loss", "step_s"} <= set(done.summary().index)
    assert done.summary().loc["loss", "max"] == done.stats.query("phase == 'train'")["loss"].max()
    assert done.summary("rank").loc[0, "rows"] == 14
    assert done.summary("phase").loc["val", "rows"] == 6
    assert "checkpoint" in done.summary("hook").index.get_level_values("hook")
    with pytest.raises(
        UsageError, match="by must be 'rank', 'node', 'phase', 'span' or 'hook', got 'host'"
    ):
        done.summary("host")


def test_summaries_of_a_part(done: Run) -> None:
    assert list(done.summary(columns=["loss"]).index) == ["loss"]
    later = done.summary("rank", ["step_s"], "epoch == 1")
    assert later.loc[0].to_dict() == {
        "node": later.loc[0, "node"],
        "rows": 7,
        "step_s": done.stats.query("phase == 'train' and epoch == 1")["step_s"].median(),
    }
    assert (
        done.summary(where="phase == 'val'").loc["loss", "max"]
        == done.stats.query("phase == 'val'")["loss"].max()
    )
    assert set(done.summary("phase", where="epoch == 1")["rows"]) == {7, 3}
    with pytest.raises(UsageError, match="cannot be combined with --where or --columns"):
        done.summary("hook", where="rank == 0")


@pytest.mark.parametrize("largest", [2**53 + 1, 2**63 + 1])
def test_large_integers_in_some_reports_are_exact(tmp_path: Path, largest: int) -> None:
    folder = create_run(tmp_path, "points", "hooks: {}\n")
    for number, entries in enumerate([{"seen": largest}, {"val/loss": 0.5}, {"seen": 3}]):
        folder.append_report(
            {"attempt": 0, "iteration": number, "epoch": number, "step": number, **entries}
        )
    table = open_run(tmp_path / "points").metrics
    assert [None if value is pd.NA else value for value in table["seen"]] == [largest, None, 3]
    assert (str(table["val/loss"].dtype), str(table["step"].dtype)) == ("float64", "int64")


def test_new_run_has_empty_tables(tmp_path: Path) -> None:
    create_run(tmp_path, "new", "hooks: {}\n")
    new = open_run(tmp_path / "new")
    assert new.status == "running"
    assert (len(new.stats), len(new.metrics), len(new.hook_costs)) == (0, 0, 0)
    with pytest.raises(CheckpointError):
        new.checkpoint()


def test_open_run_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it has no run\.json"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="it does not exist"):
        open_run(tmp_path / "missing")
