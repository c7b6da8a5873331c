"""What hooks write, where a run lies on no disk; files in memory stand for an object store."""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.artifacts import Artifacts, open_artifacts
from orchestrator.storage import Storage


@pytest.fixture
def run() -> Storage:
    return Storage(f"memory://hooks-{uuid.uuid4().hex}") / "run"


def sent_by(monkeypatch: pytest.MonkeyPatch, run: Storage) -> list[str]:
    """The names of what is sent, or removed with a minus, from now on."""
    found: list[str] = []
    create = Storage.create
    delete = Storage.delete

    def noting_create(self: Storage, name: str) -> Any:
        if not name.startswith("."):
            found.append(name)
        return create(self, name)

    def noting_delete(self: Storage, name: str) -> None:
        found.append(f"-{name}")
        delete(self, name)

    monkeypatch.setattr(Storage, "create", noting_create)
    monkeypatch.setattr(Storage, "delete", noting_delete)
    return found


def test_changed_files_are_uploaded_and_removed_ones_deleted(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = open_artifacts(run)
    sent = sent_by(monkeypatch, run)
    (artifacts.folder / "board").mkdir()
    (artifacts.folder / "board/events").write_text("a")
    (artifacts.folder / "scalars.jsonl").write_text("1\n")
    artifacts.send()
    artifacts.send()
    (artifacts.folder / "scalars.jsonl").write_text("1\n2\n")
    artifacts.send()
    (artifacts.folder / "board/events").unlink()
    artifacts.send()
    assert [*sorted(sent[:2]), *sent[2:]] == [
        "board/events",
        "scalars.jsonl",
        "scalars.jsonl",
        "-board/events",
    ]
    assert run.read("scalars.jsonl") == b"1\n2\n"
    artifacts.close()
    assert not artifacts.folder.exists()


def test_temporary_folder_of_a_rank_that_could_not_begin_is_removed(run: Storage) -> None:
    folder = open_artifacts(run).folder
    assert not folder.exists()


def appended(artifacts: Artifacts, name: str, text: str) -> None:
    path = artifacts.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_resumed_rank_appends_to_its_files(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        first = open_artifacts(run, rank, 3)
        appended(first, f"own/rank={rank}.txt", "before\n")
        first.send()
        first.close()
    sent = sent_by(monkeypatch, run)
    later = [open_artifacts(run, rank, 2) for rank in range(2)]
    for one in later:
        one.fetch()
        one.send()
    assert sent == [], "what was fetched is not sent again"
    fetched_by_0, fetched_by_1 = (
        {path.name for path in one.folder.rglob("*.txt")} for one in later
    )
    assert fetched_by_0 == {"rank=0.txt", "rank=2.txt"}, "of a rank that is no more, too"
    assert fetched_by_1 == {"rank=1.txt"}
    appended(later[0], "own/rank=2.txt", "after\n")
    later[0].send()
    assert (sent, run.read("own/rank=2.txt")) == (["own/rank=2.txt"], b"before\nafter\n")


def test_list_cannot_name_files_outside_the_folder(run: Storage, tmp_path: Path) -> None:
    run.write(
        ".artifacts/rank-0000.json", b'{"files": ["../../outside", "/etc/passwd", 5, "none"]}'
    )
    later = open_artifacts(run)
    later.fetch()
    assert list(later.folder.iterdir()) == []


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', '{"files": "none"}', "{"])
def test_damaged_list_is_left_out(run: Storage, text: str) -> None:
    run.write(".artifacts/rank-0000.json", text)
    later = open_artifacts(run)
    later.fetch()
    assert list(later.folder.iterdir()) == []


@pytest.mark.parametrize("last", range(1, 12))
def test_kill_at_any_operation_loses_no_uploaded_file(
    run: Storage, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Killed while it sends, a rank takes up at least what it had sent before, and at most what it
    was about to."""
    first = open_artifacts(run)
    appended(first, "a.log", "1\n")
    first.send()
    appended(first, "a.log", "2\n")
    appended(first, "b.log", "1\n")
    calls: list[str] = []

    def killing(operation: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append("")
            if len(calls) == last:
                raise KeyboardInterrupt
            return operation(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create", killing(Storage.create))
        with suppress(KeyboardInterrupt):
            first.send()
    later = open_artifacts(run)
    later.fetch()
    assert (later.folder / "a.log").read_text() in ("1\n", "1\n2\n")
    for name in ("a.log", "b.log"):
        appended(later, name, "3\n")
    later.send()
    assert run.read("a.log") in (b"1\n3\n", b"1\n2\n3\n")
    assert run.read("b.log") in (b"3\n", b"1\n3\n")


def test_files_of_a_run_on_a_disk_are_in_its_folder(tmp_path: Path) -> None:
    artifacts = open_artifacts(Storage(tmp_path) / "run")
    appended(artifacts, "board/events", "a")
    artifacts.send()
    artifacts.close()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["board"]
    again = open_artifacts(Storage(tmp_path) / "run")
    again.fetch()
    assert (again.folder / "board/events").read_text() == "a"
