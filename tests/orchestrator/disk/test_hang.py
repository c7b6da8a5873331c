"""Which ranks hang, which wait for them, and which do not report."""

from pathlib import Path

import pytest

from orchestrator.disk.attempts import Host
from orchestrator.disk.hang import REQUEST, HangReports, RankStack, find_hang, find_hung_ranks
from orchestrator.disk.new_run import create_run


def stack(
    rank: int, idle_s: float, *, waits: bool = False, limit_s: float = 300, at: float = 1000.0
) -> RankStack:
    return RankStack(rank, "n1", at, idle_s, limit_s, waits, f"place {rank}", f"stack {rank}\n")


@pytest.mark.parametrize(
    ("said", "hung", "silent", "waiting"),
    [
        pytest.param(
            [stack(0, 305, waits=True), stack(1, 301)], [1], [], [0], id="one stands, one waits"
        ),
        pytest.param([stack(0, 305), stack(1, 301)], [0, 1], [], [], id="both stand"),
        pytest.param(
            [stack(0, 400, waits=True), stack(1, 390, waits=True)],
            [],
            [],
            [0, 1],
            id="calls that do not match",
        ),
        pytest.param([stack(0, 400, waits=True)], [], [1], [0], id="the other says nothing"),
        pytest.param(
            [stack(0, 400, waits=True), stack(1, 290, at=900)],
            [],
            [1],
            [0],
            id="the other has stopped saying anything",
        ),
    ],
)
def test_hung_ranks_are_distinguished_from_waiting_ones(
    said: list[RankStack], hung: list[int], silent: list[int], waiting: list[int]
) -> None:
    found = find_hung_ranks(said, 2)
    assert found is not None
    assert [one.rank for one in found.hung] == hung
    assert list(found.silent) == silent
    assert [one.rank for one in found.waiting] == waiting
    assert found.ranks == tuple(hung + silent or waiting)
    assert all(f"place {rank}" in str(found) for rank in hung or waiting)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([], id="nobody says anything"),
        pytest.param([stack(0, 290, waits=True), stack(1, 290)], id="not for long enough"),
        pytest.param([stack(0, 305, waits=True)], id="the other may be about to say so"),
        pytest.param(
            [stack(0, 900, waits=True), stack(1, 0)], id="the other makes progress, slowly"
        ),
        pytest.param(
            [stack(0, 900, waits=True), stack(1, 1000, limit_s=1500)],
            id="the other saves a checkpoint",
        ),
    ],
)
def test_slow_ranks_do_not_hang(said: list[RankStack]) -> None:
    assert find_hung_ranks(said, 2) is None


def test_hang_is_found_in_the_newest_attempt(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    for _ in range(2):
        folder.begin_attempt(
            hosts=[Host(rank, "n1", rank, "cpu", "2") for rank in range(2)], world_size=2
        )
    assert find_hang(folder) is None
    before, now = (HangReports(folder, attempt, 2) for attempt in (0, 1))
    before.write(stack(1, 400))
    assert find_hang(folder) is None
    now.write(stack(1, 400))
    (tmp_path / "run/.hang/1-0.hangs").write_text("{")
    found = find_hang(folder)
    assert str(found).endswith(": place 1")
    assert "has made no progress since" in str(found)
    assert found is not None
    assert found.stacks == "stack of rank 1:\nstack 1\n"
    now.withdraw(1)
    assert find_hang(folder) is None


def test_faulthandler_stack_shows_who_holds_the_interpreter_lock(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    folder.begin_attempt(world_size=1)
    path = HangReports(folder, 0, 1).stack_file(0)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_hang(folder) is None
    path.write_text("File task.py, line 3")
    found = find_hang(folder)
    assert found is not None
    assert str(found).startswith("training has made no progress since")
    assert "does not release Python's interpreter lock" in str(found)
    assert "task.py, line 3" in found.stacks


def test_driver_requests_stacks(tmp_path: Path) -> None:
    folder = create_run(tmp_path, "run", "hooks: {}\n")
    notes = HangReports(folder, 0, 1)
    assert not notes.has_request()
    folder.storage.write(REQUEST, "")
    assert notes.has_request()
