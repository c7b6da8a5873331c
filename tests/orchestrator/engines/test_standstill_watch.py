"""Where a rank stands is read from its stack; nothing that takes long is said to stand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hooks import Hook, State
from orchestrator import run
from orchestrator.config.sections.experiment import Hang
from orchestrator.engines import standstill_watch
from orchestrator.engines.standstill_watch import StandstillWatch
from orchestrator.errors import RunError
from orchestrator.loop.clock.span_clock import INTERVALS
from orchestrator.loop.loop import Loop
from orchestrator.loop.world import World
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.standstill import ASKED, StandstillNotes, Whereabouts
from tests.tasks import Points, PointSet, described, experiment

HERE = Path(__file__).name
LOOK: list[Any] = []
"""What each place calls."""


def look(place: str) -> None:
    for seen in LOOK:
        seen(place)


class LookedAt(PointSet):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        look("data_wait_s")
        return super().__getitem__(index)


@dataclass
class Looking(Points):
    """Looks from within each of its methods."""

    def data(self) -> Mapping[str, Dataset[Any]]:
        return {"train": LookedAt(16, False, 0), "val": LookedAt(16, False, 1)}

    def forward(self, model: nn.Module, batch: Any) -> Any:
        look("forward_s")
        output = model(batch[0])
        if output.requires_grad:
            output.register_hook(lambda gradient: look("backward_s"))
        return output

    def loss(self, output: Tensor, batch: Any) -> Tensor:
        look("loss_s")
        return super().loss(output, batch)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: look("optimizer_s"))
        return optimizer


@dataclass
class Looks(Hook):
    def on_iteration_start(self, state: State) -> None:
        look("hooks_s")

    on_batch = on_forward = on_loss = on_backward = on_gradients = on_update = on_step = on_iteration_start

    def on_phase_end(self, state: State) -> None:
        look("")


def watching(tmp_path: Path, **limits: Any) -> StandstillWatch:
    folder = RunFolder.create(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt()
    return StandstillWatch(StandstillNotes(folder, 0, 1), World(), Hang(**limits))


def test_each_place_of_an_iteration_is_told_by_the_name_of_its_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, seen = watching(tmp_path, after=10), set[tuple[str, str, bool]]()

    def told(span: str) -> None:
        words: Whereabouts = watch._whereabouts()
        assert f"{HERE}:" in words.place
        assert not words.waits
        in_iteration = words.place.startswith(("train, epoch 0, ", "val, epoch 0, ")) and f", {span} (" in words.place
        seen.add(
            (
                words.place.split(",")[0],
                span,
                in_iteration if span else not any(span in words.place for span in INTERVALS),
            )
        )

    monkeypatch.setattr(standstill_watch, "is_own_file", lambda file: file.endswith(HERE))
    monkeypatch.setattr("tests.orchestrator.engines.test_standstill_watch.LOOK", [told])
    loop = Loop(
        Looking(), experiment(task=f"{__name__}:Looking", optimizer={"type": "task"}, epochs=1), {"looks": Looks()}
    )
    watch.over(loop.state)
    list(loop.run())
    spans = {"data_wait_s", "forward_s", "loss_s", "hooks_s", ""}
    assert seen == {("train", span, True) for span in spans | {"backward_s", "optimizer_s"}} | {
        ("val", span, True) for span in spans
    }


def test_what_may_take_long_is_given_five_times_as_long(tmp_path: Path) -> None:
    watch, limits = watching(tmp_path, after=10), []
    loop = Loop(
        Looking(), experiment(task=f"{__name__}:Looking", optimizer={"type": "task"}, epochs=1), {"looks": Looks()}
    )
    assert watch._whereabouts().limit_s == 50, "the model is being built"
    watch.over(loop.state)
    LOOK.append(
        lambda place: limits.append((loop.state.phase, loop.state.phase_iteration, place, watch._whereabouts().limit_s))
    )
    try:
        list(loop.run())
    finally:
        LOOK.clear()
    assert {(phase, limit) for phase, number, place, limit in limits if place and number == 0} == {
        ("train", 50),
        ("val", 50),
    }
    assert {(phase, limit) for phase, number, place, limit in limits if not place} == {("train", 50), ("val", 50)}
    assert {limit for _, number, place, limit in limits if place in ("forward_s", "data_wait_s") and number} == {10}


def test_it_leaves_word_while_it_stands_and_takes_it_back(tmp_path: Path) -> None:
    watch = watching(tmp_path, after=10)
    notes = watch._notes
    watch.over(state := Loop(Points(), experiment(), {}).state)
    watch._look(5)
    for passed in range(1, 8):
        watch._look(8)
        assert bool(notes.read()) == (8 * passed >= 50)
    assert notes.judged()
    state.iteration += 1
    watch._look(8)
    assert notes.read() == []
    watch._look(5)
    assert notes.read() == []
    RunFolder(tmp_path, "run").storage.write(ASKED, "")
    watch._look(1)
    assert [one.stood_s for one in notes.read()] == [6], "it is asked where it is"
    with watch.away():
        watch._look(100)
    assert notes.read() == [], "whoever drives it takes long"


def test_a_rank_that_lives_leaves_word_while_another_stands(tmp_path: Path) -> None:
    watch = watching(tmp_path, after=10)
    watch._notes.leave(Whereabouts(1, "n1", time.time(), 20, 10, True, "backward_s"))
    watch._look(1)
    assert [(one.rank, one.is_over_limit) for one in watch._notes.read()] == [(0, False), (1, True)]
    watch._notes.withdraw(1)
    watch._look(1)
    assert watch._notes.read() == []


@dataclass
class Sleeps(Hook):
    """Stands at an iteration, for ever or for some seconds."""

    seconds: float = 60.0

    def on_step(self, state: State) -> None:
        if state.iteration == 3:
            time.sleep(self.seconds)


@pytest.mark.parametrize("action", ["fail", "warn"])
def test_in_this_process_a_standstill_is_told_or_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    hooks = {"sleeps": {"type": f"{__name__}:Sleeps", "seconds": 60 if action == "fail" else 2.3}}
    wanted = described(hooks=hooks, hang={"after": 1, "action": action}, epochs=1)
    if action == "fail":
        with pytest.raises(
            RunError,
            match=(
                rf"rank 0 on .* stands still since .*: train, epoch 0, 3 of 7 iterations done, hooks_s \(.*{HERE}:\d+,"
                r" in on_step"
            ),
        ):
            run(wanted, tmp_path, "run", local=True)
        assert RunFolder(tmp_path, "run").metadata().status == "failed"
        return
    assert run(wanted, tmp_path, "run", local=True).status == "finished"
    told = capsys.readouterr().err
    assert "run: rank 0 on" in told
    assert "hooks_s" in told
    log = (tmp_path / "run/log.txt").read_text()
    assert "stands still since" in log
    assert "in on_step" in log.split("rank 0 stands here:")[1]
    assert not (tmp_path / "run/.standstill").exists()
