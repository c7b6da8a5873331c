"""What the ranks' words come to: who stands, who waits, and who does neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.records.metadata import Host
from orchestrator.records.run_folder import RunFolder
from orchestrator.records.standstill import ASKED, StandstillNotes, Whereabouts, present_standstill, standstill


def words(rank: int, stood_s: float, *, waits: bool = False, limit_s: float = 300, at: float = 1000.0) -> Whereabouts:
    return Whereabouts(rank, "n1", at, stood_s, limit_s, waits, f"place {rank}", f"stack {rank}\n")


@pytest.mark.parametrize(
    ("said", "standing", "silent", "waiting"),
    [
        pytest.param([words(0, 305, waits=True), words(1, 301)], [1], [], [0], id="one stands, one waits"),
        pytest.param([words(0, 305), words(1, 301)], [0, 1], [], [], id="both stand"),
        pytest.param(
            [words(0, 400, waits=True), words(1, 390, waits=True)], [], [], [0, 1], id="calls that do not match"
        ),
        pytest.param([words(0, 400, waits=True)], [], [1], [0], id="the other says nothing"),
        pytest.param(
            [words(0, 400, waits=True), words(1, 290, at=900)], [], [1], [0], id="the other has stopped saying anything"
        ),
    ],
)
def test_ranks_that_stand_are_told_from_those_that_wait(
    said: list[Whereabouts], standing: list[int], silent: list[int], waiting: list[int]
) -> None:
    found = standstill(said, 2)
    assert found is not None
    assert [one.rank for one in found.standing] == standing
    assert list(found.silent) == silent
    assert [one.rank for one in found.waiting] == waiting
    assert found.ranks == tuple(standing + silent or waiting)
    assert all(f"place {rank}" in str(found) for rank in standing or waiting)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([], id="nobody says anything"),
        pytest.param([words(0, 290, waits=True), words(1, 290)], id="not for long enough"),
        pytest.param([words(0, 305, waits=True)], id="the other may be about to say so"),
        pytest.param([words(0, 900, waits=True), words(1, 0)], id="the other makes progress, slowly"),
        pytest.param([words(0, 900, waits=True), words(1, 1000, limit_s=1500)], id="the other saves a checkpoint"),
    ],
)
def test_what_takes_long_is_no_standstill(said: list[Whereabouts]) -> None:
    assert standstill(said, 2) is None


def test_a_run_s_newest_attempt_is_looked_at(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run", "hooks: {}\n")
    for _ in range(2):
        folder.begin_attempt(hosts=[Host(rank, "n1", rank, "cpu", "2") for rank in range(2)], world_size=2)
    assert present_standstill(folder) is None
    before, now = (StandstillNotes(folder, attempt, 2) for attempt in (0, 1))
    before.leave(words(1, 400))
    assert present_standstill(folder) is None
    now.leave(words(1, 400))
    (tmp_path / "run/.standstill/1-0.stands").write_text("{")
    found = present_standstill(folder)
    assert str(found).endswith(": place 1")
    assert "stands still since" in str(found)
    assert found is not None
    assert found.stacks == "rank 1 stands here:\nstack 1\n"
    now.withdraw(1)
    assert present_standstill(folder) is None


def test_a_stack_that_was_written_without_the_interpreter_tells_who_holds_it(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    path = StandstillNotes(folder, 0, 1).stack_file(0)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    assert present_standstill(folder) is None
    path.write_text("File task.py, line 3")
    found = present_standstill(folder)
    assert found is not None
    assert "rank 0 stands still since" in str(found)
    assert "does not let go of Python's interpreter" in str(found)
    assert "task.py, line 3" in found.stacks


def test_the_driver_asks(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run", "hooks: {}\n")
    notes = StandstillNotes(folder, 0, 1)
    assert not notes.asked()
    folder.storage.write(ASKED, "")
    assert notes.asked()
