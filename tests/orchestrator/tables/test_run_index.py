"""The table of all runs in a storage, beside numbers known by hand and the runs themselves; its
index, which only spares reading."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import UsageError, list_runs, open_run, run, sweep
from orchestrator.disk.attempts import Attempt, Host, LeadingAttempt, write_attempt
from orchestrator.disk.process import Process
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.timestamps import format_now
from orchestrator.errors import StorageError
from orchestrator.runs.listing import query_runs
from orchestrator.storage import Storage
from orchestrator.storage.read_only import ReadOnlyStorage
from orchestrator.tables import run_index
from orchestrator.tables.run_index import INDEX, RunIndex
from tests.orchestrator.doctor.runs import training
from tests.orchestrator.runs.written import NOBODY, rows_of, written_run
from tests.orchestrator.sweeps.test_in_process import searching
from tests.tasks import described

ACCURACIES = [0.5, 0.9, 0.7]


def change(folder: RunFolder, **entries: Any) -> None:
    """Change `run.json` as somebody else would."""
    file = Path(str(folder)) / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def write_run(root: Path, name: str, device: str = "cpu", **fields: Any) -> RunFolder:
    """A run of two ranks and three epochs that took 90 s, the second of them the best."""
    folder = written_run(root, name, fields.pop("metadata", {}), **fields)
    hosts = [Host(rank, "here", device=device) for rank in range(2)]
    attempts = [*folder.read_attempts(), folder.begin_attempt(hosts=hosts, world_size=2)]
    write_attempt(folder.storage, replace(attempts[0], hosts=hosts))
    for epoch, accuracy in enumerate(ACCURACIES):
        folder.append_report(
            {
                "attempt": 1,
                "time": f"2026-11-01T00:00:{10 * epoch:02d}Z",
                "epoch": epoch,
                "step": 10 * epoch + 10,
                "iteration": 10 * epoch + 10,
                "val/accuracy": accuracy,
                "train/loss": 1 - accuracy,
            }
        )
    folder.run_file.end("finished")
    change(folder, started="2026-11-01T00:00:00Z", ended="2026-11-01T00:01:30Z")
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the runs that are read."""
    paths: list[str] = []
    read = run_index.read_run_record

    def count(storage: Storage, path: str) -> dict[str, Any] | None:
        paths.append(path)
        return read(storage, path)

    monkeypatch.setattr(run_index, "read_run_record", count)
    return paths


def test_row_has_the_numbers_of_its_run(tmp_path: Path) -> None:
    git = {"commit": "abc123", "dirty": True}
    write_run(
        tmp_path,
        "first",
        device="cuda:0",
        metadata={"tags": ["paper", "slow"], "notes": "why", "git": git},
        optimizer={"type": "SGD", "lr": 0.25},
    )
    (row,) = list_runs(tmp_path).to_dict("records")
    expected = {
        "name": "first",
        "path": f"{tmp_path}/first",
        "kind": "run",
        "status": "finished",
        "best": 0.9,
        "metric": "val/accuracy",
        "mode": "max",
        "epoch": 1,
        "val/accuracy": 0.9,
        "train/loss": 1 - 0.9,
        "last/val/accuracy": 0.7,
        "last/train/loss": 1 - 0.7,
        "tags": ["paper", "slow"],
        "notes": "why",
        "commit": "abc123",
        "dirty": True,
        "reports": 3,
        "attempts": 2,
        "total_s": 90.0,
        "gpu_hours": 2 * 90 / 3600,
        "started": pd.Timestamp("2026-11-01", tz="UTC"),
        "ended": pd.Timestamp("2026-11-01T00:01:30", tz="UTC"),
        "config/optimizer.lr": 0.25,
        "config/optimizer.type": "SGD",
        "config/epochs": 4,
        "config/batch_size": 8,
    }
    assert {name: row[name] for name in expected} == expected
    assert not {"config/name", "config/tags", "driver", "signature"} & row.keys()


@pytest.mark.parametrize(("gpu", "hours"), [(True, 2 / 40), (0.5, 1 / 40), (False, 0)])
def test_gpu_hours_count_shares_of_gpus(tmp_path: Path, gpu: Any, hours: float) -> None:
    folder = write_run(tmp_path, "first", device="cuda" if gpu else "cpu")
    experiment = Path(str(folder)) / "experiment.yaml"
    text = experiment.read_text().replace("  gpu: false", f"  gpu: {json.dumps(gpu)}")
    experiment.write_text(text)
    assert list_runs(tmp_path)["gpu_hours"].tolist() == [hours]


def write_attempts(folder: RunFolder, *begun: tuple[str, int], **changes: Any) -> None:
    """Write attempts by their starts and numbers of GPUs; `changes` are of the first."""
    for number, (moment, gpus) in enumerate(begun):
        hosts = [Host(rank, "here", device="cuda:0") for rank in range(gpus)]
        attempt = Attempt(number, started=moment, world_size=gpus, hosts=hosts)
        write_attempt(folder.storage, attempt if number else replace(attempt, **changes))


def test_gpu_hours_count_the_gpus_of_each_attempt(tmp_path: Path) -> None:
    """60 s on 4 GPUs and 30 s on 2 after an accident; a day later 90 s on 1."""
    folder = written_run(tmp_path, "first")
    later = ("2026-11-01T00:01:00Z", 2), ("2026-11-02T00:00:00Z", 1)
    write_attempts(folder, ("2026-11-01T00:00:00Z", 4), *later)
    line = {"attempt": 1, "iteration": 1, "val/accuracy": 0.5}
    folder.append_report({**line, "time": "2026-11-01T00:01:30Z"})
    folder.run_file.end("finished")
    lives = {"started": "2026-11-01T00:00:00Z", "resumed": ["2026-11-02T00:00:00Z"]}
    change(folder, **lives, earlier_s=90.0, ended="2026-11-02T00:01:30Z")

    (row,) = list_runs(tmp_path).to_dict("records")
    assert row["total_s"] == 180
    assert row["gpu_hours"] == pytest.approx((60 * 4 + 30 * 2 + 90 * 1) / 3600)


def test_gpu_hours_of_a_run_that_still_runs_are_until_its_last_report(tmp_path: Path) -> None:
    folder = written_run(tmp_path, "first")
    write_attempts(folder, ("2026-11-01T00:00:00Z", 4), ("2026-11-01T00:01:00Z", 2))
    line = {"attempt": 1, "iteration": 1, "val/accuracy": 0.5}
    folder.append_report({**line, "time": "2026-11-01T00:01:30Z"})
    change(folder, started="2026-11-01T00:00:00Z", **vars(Process.current()))
    hours = list_runs(tmp_path)["gpu_hours"].tolist()
    assert hours == [pytest.approx((60 * 4 + 30 * 2) / 3600)]


def test_gpu_hours_leave_out_attempts_that_followed_another_trial(tmp_path: Path) -> None:
    folder = written_run(tmp_path, "first")
    leader = LeadingAttempt("0001", 1)
    begun = ("2026-11-01T00:00:00Z", 4), ("2026-11-01T00:01:00Z", 2)
    write_attempts(folder, *begun, leader=leader)
    folder.run_file.end("finished")
    change(folder, started="2026-11-01T00:00:00Z", ended="2026-11-01T00:01:30Z")
    assert list_runs(tmp_path)["gpu_hours"].tolist() == [pytest.approx(30 * 2 / 3600)]


def test_gpu_hours_of_a_leader_last_until_its_last_follower_has_ended(tmp_path: Path) -> None:
    """A leader on 2 GPUs was stopped after 60 s; its training went on for others until 180 s."""
    root = Path(str(written_run(tmp_path, "swept"))) / "trials"
    for name, seconds in (("trial-0000", 60), ("trial-0001", 120), ("trial-0002", 180)):
        folder = written_run(root, name, {"trial": name})
        is_leader = name == "trial-0000"
        changes = {} if is_leader else {"leader": LeadingAttempt("trial-0000", 0)}
        write_attempts(folder, ("2026-11-01T00:00:00Z", 2), **changes)
        folder.run_file.end("stopped")
        ended = f"2026-11-01T00:0{seconds // 60}:00Z"
        change(folder, started="2026-11-01T00:00:00Z", ended=ended)
    for _ in range(2):  # from the files, and from the index
        hours = list_runs(tmp_path).set_index("name")["gpu_hours"]
        assert hours["trial-0000"] == pytest.approx(2 * 180 / 3600)
        assert hours[["trial-0001", "trial-0002"]].tolist() == [0, 0]


def test_rows_agree_with_runs_trials_and_evaluations(tmp_path: Path) -> None:
    done = run(described(epochs=3, tags=["paper"]), tmp_path, "alone", local=True)
    evaluated = done.evaluate("last")
    space = {"optimizer.lr": {"grid": [0.01, 0.5]}}
    outcome = sweep(searching(space, tags=["paper"]), tmp_path, "rates", local=True)

    rows = list_runs(tmp_path).set_index("path")
    assert rows["kind"].value_counts().to_dict() == {
        "run": 1,
        "evaluation": 1,
        "sweep": 1,
        "trial": 2,
    }
    own = rows.loc[str(done.path)]
    best = done.best
    assert best is not None
    assert (own["best"], own["metric"], own["epoch"]) == (best.value, best.metric, best.epoch)
    assert own["checkpoint"] == best.checkpoint
    assert own["last/val/loss"] == done.metrics["val/loss"].iloc[-1]
    assert own["step_s"] == done.stats.query("phase == 'train'")["step_s"].median()
    assert own["config/batch_size"] == done.config["batch_size"]

    measured = rows.loc[str(evaluated.path)]
    assert measured["val/accuracy"] == evaluated.metrics["val/accuracy"].iloc[-1]
    assert measured["evaluates"] == str(evaluated.folder.read_metadata().evaluates)

    trials = rows[rows["kind"] == "trial"].set_index("name")
    compared = [name for name in outcome.trials if name in trials]
    assert {"val/accuracy", "last/val/loss", "config/optimizer.lr", "step_s"} <= {*compared}
    own_rows, expected = trials[compared], outcome.trials[compared]
    assert own_rows.isna().to_numpy().tolist() == expected.isna().to_numpy().tolist()
    for name in compared:
        assert own_rows[name].dropna().tolist() == expected[name].dropna().tolist()
    assert trials["sweep"].tolist() == ["rates", "rates"]
    assert trials["tags"].tolist() == [["paper"], ["paper"]]
    swept = rows.loc[str(outcome.path)]
    assert swept["best"] == outcome.trials["val/accuracy"].max()


@pytest.mark.parametrize("largest", [2**63 + 1, 2**64 + 1])
def test_large_integers_of_several_runs_are_exact(tmp_path: Path, largest: int) -> None:
    seen = [2**53 + 1, largest, 7]
    for number, count in enumerate(seen):
        folder = write_run(tmp_path, f"run-{number}")
        folder.append_report(
            {"attempt": 1, "epoch": 4, "step": 40, "iteration": 40, "val/seen": count}
        )
    write_run(tmp_path, "without")
    column = list_runs(tmp_path).set_index("name")["last/val/seen"]
    assert [int(column[f"run-{number}"]) for number in range(3)] == seen
    assert pd.isna(column["without"])
    found = query_runs(
        tmp_path, 'select "last/val/seen" as seen from runs where "last/val/seen" > 8'
    )
    assert sorted(map(int, found["seen"])) == sorted(seen[:2])


def test_best_of_a_sweep_with_repeats_is_the_mean_of_its_best_configuration(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"grid": [0.01, 0.5]}}
    outcome = sweep(searching(space, repeats=2), tmp_path, "rates", local=True)
    means = outcome.trials.groupby("configuration")["val/accuracy"].mean()
    rows = list_runs(tmp_path)
    assert rows.loc[rows["kind"] == "sweep", "best"].tolist() == [pytest.approx(means.max())]
    assert means.max() < outcome.trials["val/accuracy"].max(), "of a single seed"


def test_only_what_has_changed_is_read(tmp_path: Path, reads: list[str]) -> None:
    folders = [write_run(tmp_path, name) for name in ("a", "b", "c")]
    assert sorted(list_runs(tmp_path)["name"]) == ["a", "b", "c"]
    assert sorted(reads) == ["a", "b", "c"]

    reads.clear()
    list_runs(tmp_path)
    assert reads == []

    change(folders[1], tags=["paper"])
    assert query_runs(tmp_path, "select name from runs where tag = 'paper'")["name"][0] == "b"
    assert reads == ["b"]

    reads.clear()
    line = {"attempt": 1, "iteration": 99, "epoch": 3, "val/accuracy": 1.0}
    folders[2].append_report(line)
    assert list_runs(tmp_path).set_index("name")["best"].to_dict() == {"a": 0.9, "b": 0.9, "c": 1.0}
    assert reads == ["c"]

    reads.clear()
    folders[0].begin_attempt()
    list_runs(tmp_path)
    assert reads == ["a"]

    reads.clear()
    Storage(tmp_path).delete("a")
    assert sorted(list_runs(tmp_path)["name"]) == ["b", "c"]
    assert reads == []


def test_rows_are_kept_in_memory(tmp_path: Path, reads: list[str]) -> None:
    folders = [write_run(tmp_path, name) for name in ("a", "b")]
    index = RunIndex(ReadOnlyStorage(tmp_path))
    table = index.read()
    assert index.read() is table
    assert index.version == 1
    assert sorted(reads) == ["a", "b"]
    assert not (tmp_path / INDEX).exists()

    reads.clear()
    change(folders[0], status="running", pid=NOBODY)
    assert index.read()["status"].to_pylist() == ["lost", "finished"]
    assert index.version == 2
    assert reads == ["a"]


def test_table_is_the_same_whatever_index_there_was(tmp_path: Path, reads: list[str]) -> None:
    """Types follow from the values that are there now, not from those that were."""
    learning_rates: list[Any] = [1, 0.5, "auto"]
    for number, lr in enumerate(learning_rates):
        folder = write_run(tmp_path, f"run-{number}")
        experiment = Path(str(folder)) / "experiment.yaml"
        experiment.write_text(experiment.read_text().replace("lr: 0.1", f"lr: {lr}"))
        grown = list_runs(tmp_path)
        (tmp_path / INDEX).unlink()
        pd.testing.assert_frame_equal(list_runs(tmp_path), grown)

    assert grown["config/optimizer.lr"].tolist() == ["1", "0.5", "auto"]
    Storage(tmp_path).delete("run-2")
    shrunk = list_runs(tmp_path)
    assert shrunk["config/optimizer.lr"].tolist() == [1.0, 0.5]
    Storage(tmp_path).delete("run-1")
    shrunk = list_runs(tmp_path)
    assert shrunk["config/optimizer.lr"].dtype == "int64"
    (tmp_path / INDEX).unlink()
    pd.testing.assert_frame_equal(list_runs(tmp_path), shrunk)


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index.write_bytes(b"PAR1 is not all of a file"),
        lambda index: index.write_bytes(index.read_bytes()[:-100]),
        lambda index: index.write_bytes(b""),
        lambda index: pq.write_table(pa.table({"path": ["a"]}), index),
        lambda index: pq.write_table(pq.read_table(index).replace_schema_metadata(None), index),
        lambda index: index.unlink(),
    ],
)
def test_damaged_index_is_made_anew(
    tmp_path: Path, reads: list[str], damage: Callable[[Path], None]
) -> None:
    write_run(tmp_path, "a")
    before = list_runs(tmp_path)
    damage(tmp_path / INDEX)
    pd.testing.assert_frame_equal(list_runs(tmp_path), before)
    list_runs(tmp_path)
    assert reads == ["a", "a"]


def test_storage_without_write_access_has_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "a")

    def refuse(storage: Storage, name: str) -> None:
        raise StorageError("Read-only file system")

    monkeypatch.setattr(Storage, "create", refuse)
    assert list_runs(tmp_path)["best"].tolist() == [0.9]
    assert not (tmp_path / INDEX).exists()


def test_status_follows_the_driver_without_a_read(tmp_path: Path, reads: list[str]) -> None:
    alive = written_run(tmp_path, "alive")
    dead = written_run(tmp_path, "dead")
    change(dead, pid=NOBODY)
    for folder in (alive, dead):
        folder.append_report(
            {"attempt": 0, "iteration": 1, "time": format_now(), "val/accuracy": 0.5}
        )
    for _ in range(2):
        rows = list_runs(tmp_path).set_index("name")
        assert rows["status"].to_dict() == {"alive": "running", "dead": "lost"}
        assert rows["best"].tolist() == [0.5, 0.5]
    assert sorted(reads) == ["alive", "dead"]


def test_time_of_a_running_run_is_until_its_last_report(tmp_path: Path) -> None:
    folder = written_run(tmp_path, "a")
    change(folder, started="2026-11-01T00:00:00Z", earlier_s=100.0, **vars(Process.current()))
    line = {"attempt": 0, "iteration": 1, "time": "2026-11-01T00:00:20Z", "val/accuracy": 0.5}
    folder.append_report(line)
    assert list_runs(tmp_path)["total_s"].tolist() == [120.0]


def test_damaged_runs_are_told_and_the_others_listed(
    tmp_path: Path, reads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("fine", "cut", "gone", "newer", "unread"):
        write_run(tmp_path, name)
    (tmp_path / "cut/run.json").write_text('{"name": "cut", ')
    (tmp_path / "gone/run.json").unlink()
    (tmp_path / "newer/run.json").write_text('{"format": 99}')
    (tmp_path / "unread/experiment.yaml").write_text("hooks: [")
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "empty").mkdir()

    rows = list_runs(tmp_path).set_index("name")
    assert rows["status"].to_dict() == {
        "fine": "finished",
        "cut": "damaged",
        "gone": "damaged",
        "newer": "newer",
        "unread": "damaged",
    }
    assert rows["best"]["fine"] == 0.9
    for name in ("cut", "gone", "newer"):
        assert f"{tmp_path}/{name}/run.json" in rows["error"][name]
    assert f"{tmp_path}/unread/experiment.yaml" in rows["error"]["unread"]
    assert all(error in caplog.text for error in rows["error"].dropna())

    reads.clear()
    list_runs(tmp_path)
    assert reads == []


def test_run_that_is_being_created_has_no_row(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/experiment.yaml").write_text("epochs: 1\n")
    assert list_runs(tmp_path)["name"].tolist() == ["a"]


LISTING = """
import sys
from orchestrator import list_runs
for _ in range(20):
    assert len(list_runs(sys.argv[1])) == 8
"""


def test_processes_that_write_the_index_at_once_do_not_damage_it(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, f"run-{number}") for number in range(8)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LISTING, str(tmp_path)]
    others = [subprocess.Popen(command, env=environment) for _ in range(2)]
    count = 0
    while any(other.poll() is None for other in others):
        count += 1
        change(folders[count % 8], notes=f"{count}")
    assert [other.returncode for other in others] == [0, 0]
    pq.read_table(tmp_path / INDEX)
    rows = list_runs(tmp_path).set_index("name")["notes"]
    expected = {folder.name: folder.read_metadata().notes or None for folder in folders}
    assert rows.to_dict() == expected
    assert [path.name for path in tmp_path.glob(".*")] == [INDEX]


def test_tag_is_each_tag_of_a_run(tmp_path: Path) -> None:
    for name, tags in (("a", ["paper", "slow"]), ("b", ["slow"]), ("c", [])):
        write_run(tmp_path, name, metadata={"tags": tags})

    def ask(sql: str) -> list[Any]:
        return query_runs(tmp_path, f"{sql} order by all").to_numpy().tolist()

    assert ask("select name, best from runs where tag = 'slow'") == [["a", 0.9], ["b", 0.9]]
    assert ask("select name from runs where tag is null") == [["c"]]
    assert ask("select tag, count(*) from runs where tag is not null group by tag") == [
        ["paper", 1],
        ["slow", 2],
    ]
    assert ask("select name from runs where 'slow' in tags") == [["a"], ["b"]]
    assert ask("select count(*) from runs") == [[3]]
    assert ask("select tags[1] as tag from runs where name = 'a'") == [["paper"]]
    assert query_runs(tmp_path, "select tags from runs where name = 'a'")["tags"][0] == [
        "paper",
        "slow",
    ]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("select nam from runs", 'there is no column nam; did you mean "name"?'),
        (
            "select optimizer.lr from runs",
            'there is no column optimizer; did you mean "config/optimizer.lr", in double quotes?',
        ),
        (
            'select "optimizer.lr" from runs',
            'there is no column optimizer.lr; did you mean "config/optimizer.lr"?',
        ),
        (
            "select val/accuracy from runs",
            'there is no column val; did you mean "val/accuracy", in double quotes?',
        ),
        ("select name from runs where status = done", "Quote text: 'done'"),
        ('select name from runs where status = "done"', "Put text in single quotes"),
        ("select qqq from runs", "To list the columns: hookyard query"),
        ("select tagg from runs", 'there is no column tagg; did you mean "tag"?'),
        ("select name from rows", "Table with name rows does not exist; the only table is `runs`"),
        ("select * from recorded", "recorded does not exist; the only table is `runs`"),
        ("select x.name from runs", "there is no table x; the only table is `runs`"),
        ("select x.tag from runs", "there is no table x; the only table is `runs`"),
        ("select name frm runs", 'syntax error at or near "runs"'),
        ("select 1; select 2", "must be a single select, such as select name, best from runs"),
        ("drop view runs", "must be a single select"),
        ("select * from read_text('/etc/passwd')", "disabled"),
        ("select name + 1 from runs", "No function matches"),
        ("select name from runs where name = 3", "Could not convert string"),
    ],
)
def test_wrong_query_is_told_in_a_line(tmp_path: Path, sql: str, says: str) -> None:
    write_run(tmp_path, "a")
    with pytest.raises(UsageError) as raised:
        query_runs(tmp_path, sql)
    assert says in str(raised.value)
    assert str(raised.value).startswith("query: ")
    assert "\n" not in str(raised.value)


def test_metric_that_is_nan_at_the_end_is_nan_in_a_query(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    counters = {"attempt": 1, "iteration": 40, "step": 40, "epoch": 3}
    folder.append_report({**counters, "train/loss": float("nan")})
    found = query_runs(tmp_path, 'select isnan("last/train/loss") as is_nan, diverged from runs')
    assert found["is_nan"].tolist() == [True]
    assert found["diverged"].tolist() == ["train/loss is NaN since epoch 4"]
    best = open_run(str(folder)).best
    assert best is not None
    assert best.diverged == found["diverged"][0]


def test_infeasible_trial_has_no_best_and_says_what_it_breaks(tmp_path: Path) -> None:
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "search": "grid",
        "space": {"optimizer.lr": {"grid": [0.01, 0.5]}},
        "constraints": {"val/loss": "<= 1000", "last/train/loss": "<= 1.05"},
    }
    outcome = sweep(described(epochs=1, sweep=settings), tmp_path, "rates", local=True)
    for _ in range(2):
        rows = list_runs(tmp_path)
        trials = rows[rows["kind"] == "trial"].set_index("name")
        expected = outcome.trials["infeasible"]
        assert trials["infeasible"].isna().tolist() == expected.isna().tolist()
        assert trials["infeasible"].dropna().tolist() == expected.dropna().tolist()
        assert trials["best"].isna().tolist() == expected.notna().tolist()
        assert sorted(expected.isna()) == [False, True]
        assert trials["val/accuracy"].tolist() == outcome.trials["val/accuracy"].tolist()


def test_trial_has_the_tags_of_its_sweep_besides_its_own(tmp_path: Path) -> None:
    sweep_folder = written_run(tmp_path, "swept", {"tags": ["paper"]})
    trials = Path(str(sweep_folder)) / "trials"
    written_run(trials, "trial-0000", {"trial": "trial-0000", "tags": ["best", "paper"]})
    written_run(trials, "trial-0001", {"trial": "trial-0001"})

    def read_tags() -> list[list[str]]:
        tags = list_runs(tmp_path).set_index("name")["tags"]
        return [tags["trial-0000"], tags["trial-0001"]]

    assert read_tags() == [["paper", "best"], ["paper"]]
    change(sweep_folder, tags=["draft"])
    assert read_tags() == [["draft", "best", "paper"], ["draft"]]


def test_trial_of_a_damaged_sweep_keeps_its_own_tags(tmp_path: Path) -> None:
    sweep_folder = written_run(tmp_path, "swept", {"tags": ["paper"]})
    trials = Path(str(sweep_folder)) / "trials"
    written_run(trials, "trial-0000", {"trial": "trial-0000", "tags": ["best"]})
    (Path(str(sweep_folder)) / "run.json").write_text("{")
    assert list_runs(tmp_path).set_index("name")["tags"]["trial-0000"] == ["best"]


def test_follower_is_infeasible_only_once_the_speed_of_its_leader_is_known(tmp_path: Path) -> None:
    """The leader has steps of 2 s."""
    swept = {"objectives": [["val/accuracy", "max"]], "trials": 2}
    folder = written_run(tmp_path, "swept")
    change(folder, sweep={**swept, "constraints": {"step_s": "<= 1"}})
    root = Path(str(folder)) / "trials"
    leader = written_run(root, "trial-0000", {"trial": "trial-0000"})
    follower = written_run(root, "trial-0001", {"trial": "trial-0001"})
    write_attempts(follower, ("2026-11-01T00:00:00Z", 1), leader=LeadingAttempt("trial-0000", 0))
    follower.run_file.end("stopped")
    change(leader, **vars(Process.current()))

    def read_infeasible() -> list[str | None]:
        return list_runs(tmp_path).set_index("name")["infeasible"][["trial-0001"]].tolist()

    assert pd.isna(read_infeasible()).all()
    rows_of(leader, training(1, 10, step_s=2.0))
    leader.run_file.end("finished")
    assert read_infeasible() == ["step_s is 2 s, not <= 1 s"]


def test_trials_that_share_a_training_have_its_speed_and_count_its_gpus_once(
    tmp_path: Path,
) -> None:
    space = {"hooks.early_stopping.patience": {"grid": [50, 60]}}
    hooks = {"early_stopping": {"monitor": "val/loss", "patience": 50}}
    outcome = sweep(searching(space, hooks=hooks, epochs=2), tmp_path, "shared", local=True)
    assert "leader" in outcome.trials
    rows = list_runs(tmp_path)
    trials = rows[rows["kind"] == "trial"].set_index("name")
    for name in ("step_s", "samples_per_s", "data_wait_share"):
        assert trials[name].tolist() == outcome.trials[name].tolist()
    assert trials["train_s"].notna().sum() == 1
    assert "leader" not in trials


def test_a_folder_that_is_no_run_yet_is_read_once_and_changes_nothing(
    tmp_path: Path, reads: list[str]
) -> None:
    """A driver was killed before it wrote `run.json`, the last of its first files."""
    write_run(tmp_path, "done")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "experiment.yaml").write_text("name: begun\n")
    index = RunIndex(Storage(tmp_path))
    index.read()
    written = (tmp_path / INDEX).stat().st_mtime_ns
    for _ in range(2):
        assert index.read()["path"].to_pylist() == ["done"]
    assert sorted(reads) == ["begun", "done"]
    assert index.version == 1
    assert (tmp_path / INDEX).stat().st_mtime_ns == written
    RunIndex(Storage(tmp_path)).read()
    assert (tmp_path / INDEX).stat().st_mtime_ns == written
    (begun / "run.json").write_bytes((tmp_path / "done" / "run.json").read_bytes())
    assert sorted(index.read()["path"].to_pylist()) == ["begun", "done"]
