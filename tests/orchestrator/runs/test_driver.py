"""The driver's watch over its workers, without Ray: calls of the mailbox are answered when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from orchestrator import UsageError, resume, run, sweep
from orchestrator.engines.ray_environment import Ray
from orchestrator.runs import launch
from orchestrator.runs.launch import _watch
from tests.tasks import described


class ActorDied(Exception):
    """Ray's error where the actor is gone."""


class Slow:
    """Stands in for Ray, the mailbox and the work: each round says how many more of the calls are answered."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self, *rounds: tuple[int, list[Any]]) -> None:
        self.rounds = list(rounds)
        self.asked = self.answered = 0
        self.work: Future[None] = Future()
        self.answers: list[Any] = []
        self.wishes: list[bool] = []
        self.collect = SimpleNamespace(remote=self._ask)

    def _ask(self, stop: bool) -> int:
        self.wishes.append(stop)
        self.asked += 1
        count, answers = self.rounds.pop(0)
        self.answered += count
        self.answers += answers
        if len(self.rounds) == 1:
            self.work.set_result(None)
        return self.asked - 1

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [call for call in calls if call < self.answered], [call for call in calls if call >= self.answered]

    def get(self, call: int) -> Any:
        if isinstance(self.answers[call], Exception):
            raise self.answers[call]
        return self.answers[call]


def watched(slow: Slow, asked: Callable[[], bool] = lambda: False) -> list[str]:
    lines: list[str] = []
    display: Any = SimpleNamespace(line=lines.append, progress=lambda *news: None)
    _watch(slow, slow, slow.work, display, asked)
    return lines


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POLL_S", 0)


def test_what_a_slow_mailbox_answers_late_is_shown_all_the_same() -> None:
    slow = Slow((0, []), (0, []), (2, [[("line", "first")], [("line", "second")]]), (2, [[("line", "third")], []]))
    assert watched(slow) == ["first", "second", "third"]


def test_what_the_work_raised_is_raised_once_all_is_shown() -> None:
    shown: list[str] = []
    slow = Slow((1, [[("line", "last words")]]))
    slow.work.set_exception(ValueError("no"))
    display: Any = SimpleNamespace(line=shown.append)
    with pytest.raises(ValueError, match="no"):
        _watch(slow, slow, slow.work, display, lambda: False)
    assert shown == ["last words"]


@pytest.mark.parametrize("after", [[], [("line", "back again")]])
def test_a_mailbox_that_died_takes_its_news_along_and_not_the_run(after: list[Any]) -> None:
    lines = watched(Slow((1, [[("line", "before")]]), (1, [ActorDied()]), (1, [after])))
    assert lines == ["before", *(text for _, text in after)]


def test_a_wish_to_stop_is_told_with_every_call_as_a_mailbox_that_died_has_forgotten_it() -> None:
    polls = iter([False, True, True])
    slow = Slow((1, [[]]), (1, [ActorDied()]), (1, [[]]))
    watched(slow, lambda: next(polls))
    assert slow.wishes == [False, True, True]


def test_a_run_keeps_its_engine(tmp_path: Path) -> None:
    for number, how in enumerate(({"local": True}, {"engine": "in-process"}, {"engine": "in-process", "local": True})):
        done = run(described(epochs=1), tmp_path, f"points-{number}", **how)  # type: ignore[arg-type]
        assert (done.folder.metadata().engine, done.folder.metadata().local) == ("in-process", True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"engine": "gang", "local": True}, "local is the engine in-process, and engine=gang another one"),
        ({"local": True, "address": "head:6379"}, "the cluster at head:6379 is not joined"),
        ({"engine": "gang"}, r"a gang is a fixed number of ranks, and workers.count is \[1, 2\]: say workers.count=2"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_anything_is_made(tmp_path: Path, how: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(described(workers={"count": [1, 2]}), tmp_path, **how)
    assert not list(tmp_path.iterdir())


def test_what_this_machine_or_its_torch_cannot_hold_is_refused_before_ray_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ray, "__enter__", Mock(side_effect=AssertionError("Ray is started")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # one GPU, which torch is not built for
    grid = {"metric": "val/loss", "mode": "min", "search": "grid", "space": {"seed": {"grid": [1, 2]}}}
    for workers, words in (({"gpu": True}, "workers.gpu asks for a GPU, and torch"), ({"count": 10_000}, "asks for 10000 CPUs")):
        for engine in ("train", "gang"):
            with pytest.raises(UsageError, match=words):
                run(described(workers=workers), tmp_path, engine=engine)
        with pytest.raises(UsageError, match=words):
            sweep(described(workers=workers, sweep=grid), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../esc", "/tmp/esc", "a/b", "-rf", "a\nb", "a\n", "\x1b[31mred", "n" * 300, "\u6f22" * 67, "a b", "a\0b", 5]
)
def test_a_name_is_checked_by_the_rule_of_the_file(tmp_path: Path, name: Any) -> None:
    swept = described(epochs=1, sweep={"metric": "val/loss", "mode": "min", "space": {"seed": {"grid": [1, 2]}}})
    for begin, experiment in ((run, described(epochs=1)), (sweep, swept)):
        with pytest.raises(UsageError, match=r"name .* cannot be a run's") as refused:
            begin(experiment, tmp_path / "runs", name, local=True)  # type: ignore[operator]
        assert "\x1b" not in str(refused.value)
        assert len(str(refused.value)) < 400
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_is_taken_can_be_written(tmp_path: Path) -> None:
    assert run(described(epochs=1), tmp_path, "n" * 200, local=True).status == "finished"


def test_a_run_of_before_there_were_engines_goes_on_as_it_was(tmp_path: Path) -> None:
    done = run(described(epochs=1), tmp_path, local=True)
    done.folder.update(engine=None, status="interrupted")
    assert resume(done.path).status == "finished"
