"""A run from its folder to its end: what it leaves, how it fails, and the driver's watch over its
workers, whose mailbox answers when the test says so."""

import json
import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import run
from orchestrator.experiment.load import load_experiment
from orchestrator.runs import launch
from orchestrator.runs.launch import _show_until_done
from orchestrator.runs.result import Run
from tests.tasks import described


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


def shown(work: Future[None], *answers: list[Any] | ActorDied) -> list[str]:
    """Return the lines that are shown until the work is done. The mailbox answers each call in
    turn."""
    pending, lines = list(answers), list[str]()

    def collect(stop: bool) -> list[Any] | ActorDied:
        if len(pending) == 2:
            work.set_result(None)
        return pending.pop(0)

    def get(answer: list[Any] | ActorDied) -> list[Any]:
        if isinstance(answer, ActorDied):
            raise answer
        return answer

    ray: Any = SimpleNamespace(
        exceptions=SimpleNamespace(RayActorError=ActorDied),
        wait=lambda calls, **_: (calls, []),
        get=get,
    )
    mailbox: Any = SimpleNamespace(collect=SimpleNamespace(remote=collect))
    display: Any = SimpleNamespace(line=lines.append)
    try:
        _show_until_done(ray, mailbox, work, display, lambda: False)
    except ArithmeticError as error:
        lines.append(str(error))
    return lines


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0)


def test_error_is_raised_after_all_lines_are_shown() -> None:
    work: Future[None] = Future()
    work.set_exception(ArithmeticError("broken"))
    assert shown(work, [("line", "last words")]) == ["last words", "broken"]


def test_death_of_the_mailbox_does_not_end_the_run() -> None:
    lines = shown(
        Future(), [("line", "before")], ActorDied(), [("line", "after")], [("line", "at the end")]
    )
    assert lines == ["before", "after", "at the end"]


def test_run_writes_its_folder(finished: Run) -> None:
    folder = Path(finished.path)
    assert finished.status == "finished"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".driver",
        "checkpoints",
        "experiment.yaml",
        "hooks.parquet",
        "log.txt",
        "metrics.jsonl",
        "run.json",
        "source.json",
        "stats",
        "stats.parquet",
    ]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir()) == [
        "epoch-0001",
        "epoch-0002",
    ]
    assert sorted(path.name for path in (folder / "checkpoints/epoch-0002").iterdir()) == [
        "ema.pt",
        "hooks.pt",
        "manifest.json",
        "model.pt",
        "optimizer.pt",
        "rank-0000.pt",
    ]
    assert [path.name for path in (folder / "stats/attempt=0").iterdir() if path.is_file()] == [
        "attempt.json"
    ]


def test_recorded_experiment_can_be_run_again(finished: Run) -> None:
    about = json.loads((Path(finished.path) / "run.json").read_text())
    assert (about["status"], about["attempts"], about["local"], about["seed"]) == (
        "finished",
        1,
        True,
        0,
    )
    assert (about["ranks"], about["hosts"]) == (1, [os.uname().nodename])
    again = load_experiment(Path(finished.path) / "experiment.yaml")
    assert again == described(
        task_args={"test": 5}, hooks={"checkpoint": {"best": "val/accuracy"}, "ema": {"decay": 0.9}}
    )


def test_local_run_says_that_it_has_one_process(tmp_path: Path) -> None:
    done = run(described(epochs=1, workers={"count": 3}), tmp_path, local=True)
    assert done.stats["rank"].unique().tolist() == [0]
    assert "one process instead of 3 workers" in (tmp_path / "points/log.txt").read_text()
