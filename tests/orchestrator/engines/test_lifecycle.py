"""The lifecycle of a run, on an engine that only says what it was asked: what it is told, and what
is written down."""

import math
import pickle
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

from orchestrator.disk.new_run import create_run
from orchestrator.disk.rows import compaction
from orchestrator.disk.run_folder import RunFolder
from orchestrator.disk.run_status import make_lease
from orchestrator.engines import preemption
from orchestrator.engines.assignment import Assignment
from orchestrator.engines.failure_record import recording_failure
from orchestrator.engines.lifecycle import Lifecycle
from orchestrator.engines.preemption import PreemptionWatch, is_preempted
from orchestrator.engines.rank_failures import DIED, RankFailed
from orchestrator.errors import ConfigError, Problem, RunError, StorageError, TaskError, UsageError
from orchestrator.loop.report import Report
from orchestrator.loop.stopping import INTERRUPTED
from orchestrator.runs.result import open_run
from tests.orchestrator.runs.written import begun, rows_of

LAST = Report(metrics={"epoch": 1}, is_final=True)
SCRIPT = (Report(metrics={"epoch": 0}), LAST)


class Scripted:
    """An engine whose attempts each give reports, or fail."""

    def __init__(self, *attempts: tuple[Report | Exception, ...]) -> None:
        self.attempts, self.asked = list(attempts), []
        self._present: list[Report | Exception] = []
        self.end_errors: list[RankFailed] = []
        """What the next ends of training raise."""

    def begin(self, assignment: Assignment, resolved: Any) -> None:
        self.asked.append("begin")
        self._present = list(self.attempts.pop(0))

    def next(self) -> Report | None:
        self.asked.append("next")
        made = self._present.pop(0) if self._present else None
        if isinstance(made, Exception):
            raise made
        return made

    def save(self) -> str:
        self.asked.append("save")
        return "checkpoints/step-00000003"

    def end(self) -> None:
        self.asked.append("end")
        if self.end_errors:
            raise self.end_errors.pop(0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, "points", "name: points\n")


@pytest.fixture
def live(folder: RunFolder) -> Callable[..., Lifecycle]:
    def begun(engine: Scripted, **more: Any) -> Lifecycle:
        nothing: Any = None
        return Lifecycle(engine, Assignment(nothing, folder.location), nothing, **more)

    return begun


def user_error() -> RankFailed:
    return RankFailed.from_error(1, 4, TypeError("no such layer"))


@pytest.mark.parametrize(
    ("last", "status", "reasons"),
    [
        (Report(metrics={}, stopped=("no gain",), is_final=True), "stopped", ["no gain"]),
        (
            Report(metrics={}, stopped=("asked to",), interrupted=True, is_final=True),
            "interrupted",
            ["asked to"],
        ),
    ],
)
def test_status_comes_from_the_last_report(
    folder: RunFolder, live: Callable[..., Lifecycle], last: Report, status: str, reasons: list[str]
) -> None:
    live(Scripted((last,))).train()
    assert (folder.read_metadata().status, folder.read_metadata().stopped) == (status, reasons)


@pytest.mark.parametrize(
    "error", [StorageError("the disk is full"), MemoryError(), KeyboardInterrupt()]
)
def test_run_ends_before_its_rows_are_compacted_and_readers_finish_that(
    folder: RunFolder,
    live: Callable[..., Lifecycle],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun(folder)
    rows_of(
        folder,
        pd.DataFrame(
            {
                "rank": 0,
                "node": "here",
                "phase": "train",
                "epoch": 0,
                "iteration": [1, 2, 3],
                "step": 1,
            }
        ),
    )
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "compact", Mock(side_effect=error))
        with suppress(KeyboardInterrupt), recording_failure(folder):
            live(Scripted(SCRIPT)).train()
        assert folder.read_metadata().status == "finished"
        if isinstance(error, Exception):
            assert "could not compact the rows" in caplog.text
            assert open_run(str(folder)).stats["iteration"].tolist() == [1, 2, 3]
    with make_lease(folder):  # somebody goes on with it
        assert open_run(str(folder)).stats["iteration"].tolist() == [1, 2, 3]
        assert not folder.storage.exists("stats.parquet")
    assert open_run(str(folder)).stats["iteration"].tolist() == [1, 2, 3]
    assert folder.storage.exists("stats.parquet")


def test_run_begins_with_the_first_report_and_ends_only_if_begun(
    live: Callable[..., Lifecycle],
) -> None:
    engine = Scripted(SCRIPT)
    lifecycle = live(engine)
    lifecycle.shut_down()
    assert engine.asked == []
    lifecycle.next()
    assert lifecycle.engine.save() == "checkpoints/step-00000003"
    lifecycle.shut_down()
    lifecycle.shut_down()
    assert engine.asked == ["begin", "next", "save", "end"]


def test_stopped_trial_ends_at_its_report(
    folder: RunFolder, live: Callable[..., Lifecycle]
) -> None:
    engine = Scripted(SCRIPT)
    lifecycle = live(engine)
    lifecycle.next()
    lifecycle.end("stopped", ["as good as the target"])
    assert engine.asked == ["begin", "next", "end"]
    assert (folder.read_metadata().status, folder.read_metadata().stopped) == (
        "stopped",
        ["as good as the target"],
    )


def test_lost_run_restarts_and_shows_a_line(
    folder: RunFolder, live: Callable[..., Lifecycle]
) -> None:
    engine, said = (
        Scripted((SCRIPT[0], RankFailed.died(1, 4)), (RankFailed.died(0, 4),), SCRIPT),
        [],
    )
    live(engine, restarts=2, show_line=said.append).train()
    assert engine.asked == [
        "begin",
        "next",
        "next",
        "begin",
        "next",
        "begin",
        "next",
        "next",
        "next",
        "end",
    ]
    assert said == [f"Failed before it started: rank {rank}: {DIED}" for rank in (1, 0)]
    assert folder.read_metadata().status == "finished"


@pytest.mark.parametrize(("restarts", "attempts"), [(0, 1), (2, 3), (math.inf, 6)])
def test_run_restarts_up_to_the_limit(
    live: Callable[..., Lifecycle], restarts: float, attempts: int
) -> None:
    engine = Scripted(*[(RankFailed.died(1, 4),)] * 5, SCRIPT)
    with (
        nullcontext()
        if math.isinf(restarts)
        else pytest.raises(RankFailed, match="rank 1: the process died")
    ):
        live(engine, restarts=restarts).train()
    assert engine.asked.count("begin") == attempts


@pytest.mark.parametrize(
    ("limit", "attempts", "status"), [(math.inf, 3, "finished"), (1, 2, "interrupted")]
)
def test_preempted_run_restarts_up_to_the_limit(
    folder: RunFolder, live: Callable[..., Lifecycle], limit: float, attempts: int, status: str
) -> None:
    warned = Report(
        {"step": 7}, stopped=(INTERRUPTED,), interrupted=True, is_final=True, is_partial=True
    )
    engine, lines = Scripted((warned,), (SCRIPT[0], warned), SCRIPT), list[str]()
    is_warned = partial(is_preempted, is_stop_requested=lambda: False)
    live(engine, preemptions=limit, is_preempted=is_warned, show_line=lines.append).train()
    assert engine.asked.count("begin") == engine.asked.count("end") == attempts
    assert folder.read_metadata().status == status
    assert [line.endswith("Preempted after step 7") for line in lines] == [True] * (
        2 if math.isinf(limit) else 1
    )


PREEMPTED = Report({"step": 7}, stopped=(INTERRUPTED,), interrupted=True, is_final=True)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_rank_that_is_lost_after_a_preemption_s_checkpoint_is_no_other_failure(
    folder: RunFolder, live: Callable[..., Lifecycle], restarts: int
) -> None:
    """The node is taken away while the ranks end. The restart is left for the next failure."""
    failures = [RankFailed.died(1, 4)] * restarts
    engine = Scripted((PREEMPTED,), *[(failure,) for failure in failures], SCRIPT)
    engine.end_errors = [RankFailed.died(0, 4)]
    preempted = partial(is_preempted, is_stop_requested=lambda: False)
    live(engine, restarts=restarts, preemptions=1, is_preempted=preempted).train()
    assert engine.asked.count("begin") == 2 + restarts
    assert folder.read_metadata().status == "finished"


def test_a_user_error_at_the_end_after_a_preemption_fails_the_run(
    live: Callable[..., Lifecycle],
) -> None:
    engine = Scripted((PREEMPTED,), SCRIPT)
    engine.end_errors = [user_error()]
    preempted = partial(is_preempted, is_stop_requested=lambda: False)
    with pytest.raises(RankFailed, match="no such layer"):
        live(engine, restarts=3, preemptions=1, is_preempted=preempted).train()
    assert engine.asked == ["begin", "next", "end"]


@pytest.mark.parametrize(
    ("stopped", "is_requested"),
    [((INTERRUPTED,), True), ((INTERRUPTED, "time limit"), False), (("time limit",), False)],
)
def test_run_stopped_by_user_or_hook_is_not_preempted(
    stopped: tuple[str, ...], is_requested: bool
) -> None:
    report = Report({"step": 7}, stopped=stopped, interrupted=True)
    assert not is_preempted(report, lambda: is_requested)


def test_user_error_does_not_restart_the_run(live: Callable[..., Lifecycle]) -> None:
    engine = Scripted((user_error(),), SCRIPT)
    with pytest.raises(RankFailed, match="no such layer"):
        live(engine, restarts=3).train()
    assert engine.asked == ["begin", "next"]


@pytest.mark.parametrize(
    ("error", "words", "again"),
    [
        (user_error(), "rank 1: TypeError: no such layer", True),
        (RankFailed.died(1, 4), f"rank 1: {DIED}", False),
        (UsageError("move it away"), "move it away", True),
        (KeyError("weight"), "KeyError: 'weight'", True),
        (KeyboardInterrupt(), "KeyboardInterrupt", False),
    ],
)
def test_failure_is_recorded_with_its_own_message(
    folder: RunFolder, error: BaseException, words: str, again: bool
) -> None:
    with (
        pytest.raises((RunError, UsageError, KeyboardInterrupt)) as raised,
        recording_failure(folder),
    ):
        raise error
    about = folder.read_metadata()
    assert (about.status, about.error, about.is_user_error) == ("failed", words, again)
    assert str(raised.value) == (words if not isinstance(error, KeyboardInterrupt) else "")


@pytest.mark.parametrize(
    "wrong",
    [
        ConfigError([Problem("compile", "is read by nothing")]),
        UsageError("is of an earlier run"),
        TaskError("loss() returns 0.5"),
    ],
)
def test_usage_error_of_a_rank_is_raised_by_the_driver(
    folder: RunFolder, wrong: UsageError
) -> None:
    """However it came here: of any rank's process, and without a traceback, as its words say
    all."""
    told = pickle.loads(pickle.dumps(RankFailed.from_error(1, 4, wrong)))
    assert told.is_user_error
    with pytest.raises(type(wrong)) as raised, recording_failure(folder):
        raise told
    assert str(raised.value) == folder.read_metadata().error == str(wrong)
    assert getattr(raised.value, "problems", ()) == getattr(wrong, "problems", ())
    assert not folder.storage.exists("log.txt")


def test_attempt_on_other_nodes_is_not_warned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "draining_nodes", lambda: {"drained"})
    monkeypatch.setattr(
        preemption, "monotonic", lambda: 0.0
    )  # the next attempt begins before Ray is due to be asked
    nodes, lines = {"drained", "other"}, list[str]()
    watch = PreemptionWatch(lambda: nodes, lines.append)
    assert [watch.is_warned(), watch.is_warned()] == [True, True]
    nodes.remove("drained")
    assert not watch.is_warned()
    assert lines == ["node drained will be taken away; the ranks save and continue elsewhere"]
