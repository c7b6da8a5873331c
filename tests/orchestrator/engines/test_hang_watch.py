"""A hung rank reports its stack; what only takes long is no hang."""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from torch import nn

from hooks import Hook, State
from orchestrator import run
from orchestrator.disk.hang import RankStack
from orchestrator.disk.hang_reports import REQUEST, HangReports
from orchestrator.disk.new_run import create_run
from orchestrator.disk.run_folder import RunFolder
from orchestrator.engines import hang_watch, rank_progress
from orchestrator.engines.hang_watch import HangWatch
from orchestrator.engines.rank_termination import RankTermination
from orchestrator.errors import RunError
from orchestrator.experiment.sections.training import Hang
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from orchestrator.task import Task
from tests.tasks import Points, described, experiment

HERE = Path(__file__).name


@dataclass
class Calls(Points):
    """Calls `CALL` from its forward pass, at each iteration."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        for call in CALL:
            call("forward")
        return model(batch[0])


@dataclass
class CallsBetween(Hook):
    def on_phase_end(self, state: State) -> None:
        for call in CALL:
            call("phase end")


CALL: list[Any] = []


def watching(tmp_path: Path, **limits: Any) -> HangWatch:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt()
    return HangWatch(HangReports(folder, 0, 1), World(), Hang(**limits))


def train_with(
    call: Any,
    watch: HangWatch,
    monkeypatch: pytest.MonkeyPatch,
    task: Task | None = None,
    **fields: Any,
) -> None:
    monkeypatch.setattr(rank_progress, "is_user_file", lambda file: file.endswith(HERE))
    wanted = experiment(task=f"{__name__}:Calls", epochs=1, **fields)
    loop = Loop(task or Calls(), wanted, {"between": CallsBetween()})
    watch.follow(loop.state)
    CALL.append(call)
    try:
        list(loop.run())
    finally:
        CALL.clear()


def test_place_names_phase_iteration_and_line_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, places = watching(tmp_path, after=10), []
    train_with(lambda place: places.append((place, watch._make_report().place)), watch, monkeypatch)
    line = rf"\(.*{HERE}:\d+, in <lambda>\)"
    for phase in ("train", "val"):
        words = [words for place, words in places if place == "forward" and words.startswith(phase)]
        assert len(words) > 2
        for number, text in enumerate(words):
            done = (
                f"{number} of {len(words)} iterations done"
                if number or "of" in text
                else "before the first iteration"
            )
            assert re.fullmatch(rf"{phase}, epoch 1, {done} {line}", text), text


class CallsInTurns(Calls):
    def turns(self, model: nn.Module, batch: Any) -> Any:
        yield "only", self.loss(self.forward(model, batch), batch)


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        (Calls(), {}),
        (Calls(), {"accumulate": "auto"}),
        (Calls(), {"optimizer": {"type": "LBFGS", "max_iter": 1}}),
        (CallsInTurns(), {"optimizers": {"only": {"type": "SGD", "lr": 0.1, "params": ["*"]}}}),
    ],
    ids=["plain", "auto", "closure", "turns"],
)
def test_slow_places_have_five_times_the_limit(
    task: Task, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, limits = watching(tmp_path, after=10), []
    assert watch._make_report().limit_s == 50, "the model is being built"
    train_with(
        lambda place: limits.append((place, watch._make_report().limit_s)),
        watch,
        monkeypatch,
        task,
        **fields,
    )
    in_iterations = [limit for place, limit in limits if place == "forward"]
    phases = [index for index, limit in enumerate(in_iterations) if limit == 50]
    assert len(phases) == 2, "the first iteration of train and of val"
    assert set(in_iterations) == {10, 50}
    assert {limit for place, limit in limits if place == "phase end"} == {50}


def test_a_rank_reports_while_it_hangs_and_withdraws_the_report(tmp_path: Path) -> None:
    watch = watching(tmp_path, after=10)
    notes = watch._reports
    watch.follow(state := Loop(Points(), experiment(), {}).state)
    watch._check(5)
    for passed in range(1, 8):
        watch._check(8)
        assert bool(notes.read()) == (8 * passed >= 50)
    assert notes.find_hung_ranks()
    state.iteration += 1
    watch._check(8)
    assert notes.read() == []
    watch._check(5)
    assert notes.read() == []
    RunFolder(tmp_path, "run").storage.write(REQUEST, "")
    watch._check(1)
    assert [one.idle_s for one in notes.read()] == [6], "it is asked where it is"
    with watch.pause():
        watch._check(100)
    assert notes.read() == [], "whoever drives it takes long"


def test_a_live_rank_reports_while_another_hangs(tmp_path: Path) -> None:
    watch = watching(tmp_path, after=10)
    watch._reports.write(RankStack(1, "n1", time.time(), 20, 10, True, "backward_s"))
    watch._check(1)
    assert [(one.rank, one.is_over_limit) for one in watch._reports.read()] == [
        (0, False),
        (1, True),
    ]
    watch._reports.withdraw(1)
    watch._check(1)
    assert watch._reports.read() == []


@dataclass
class Hangs(Hook):
    """Hangs in an iteration, until its stack is in the log of a folder."""

    folder: str

    def on_step(self, state: State) -> None:
        while state.iteration == 3 and not any(
            "\nstack:\n" in log.read_text() for log in Path(self.folder).glob("log.txt")
        ):
            time.sleep(0.05)


@pytest.mark.parametrize("action", ["fail", "warn"])
def test_in_this_process_a_hang_is_reported_or_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    folder = tmp_path / ("run" if action == "warn" else "none")
    hooks = {"hangs": {"type": f"{__name__}:Hangs", "folder": str(folder)}}
    wanted = described(hooks=hooks, hang={"after": 1, "action": action}, epochs=1)
    if action == "fail":
        with pytest.raises(
            RunError,
            match=(
                rf"training on .* has made no progress since .*: train, epoch 1, 3 of 7 iterations done \(.*{HERE}:\d+,"
                r" in on_step"
            ),
        ):
            run(wanted, tmp_path, "run", local=True)
        assert RunFolder(tmp_path, "run").read_metadata().status == "failed"
        return
    assert run(wanted, tmp_path, "run", local=True).status == "finished"
    told = capsys.readouterr().err
    assert "run: training on" in told
    before, stack = (folder / "log.txt").read_text().split("\nstack:\n")
    assert "has made no progress since" in before
    assert "in on_step" in stack
    assert not (folder / ".hang").exists()


def test_thread_that_has_ended_has_no_stack(tmp_path: Path) -> None:
    """Python's traceback would format the stack of the watch itself."""
    watches: list[HangWatch] = []
    thread = Thread(target=lambda: watches.append(watching(tmp_path, after=1)))
    thread.start()
    thread.join()
    reports: list[RankStack] = []
    watch = watches[0]
    watch._reports.write = reports.append  # type: ignore[method-assign]
    watch._check(0)
    watch._check(3600)
    assert [report.stack for report in reports] == [""]


def test_a_rank_that_waits_ends_nothing_once_the_reports_are_withdrawn(tmp_path: Path) -> None:
    watch = watching(tmp_path, after=1, action="fail")
    reasons: list[str] = []
    watch._termination = RankTermination(reasons.append)
    report = RankStack(0, node="", at=0, idle_s=9, limit_s=1, waits=True, place="in a collective")
    watch._act(report)
    assert not reasons


def test_the_watch_survives_any_error_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the watch, faulthandler would take a rank that makes progress for a hung one."""
    watch = watching(tmp_path, after=1)
    armed: list[float] = []
    failures: list[None] = []
    has_failed_again = Event()

    def fail() -> RankStack:
        failures.append(None)
        if len(failures) == 3:
            has_failed_again.set()
        raise IndexError("list index out of range")

    monkeypatch.setattr(watch, "_make_report", fail)
    monkeypatch.setattr(watch, "_arm", armed.append)
    with watch:
        assert has_failed_again.wait(60)
    watch._thread.join()
    assert armed == [hang_watch.SLOW_FACTOR] * (1 + len(failures)), (
        "at the start and after each error"
    )
    assert "rank 0 cannot report its stack: list index out of range" in caplog.text
