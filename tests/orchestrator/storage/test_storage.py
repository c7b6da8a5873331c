import contextlib
import errno
import os
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import StorageError, UsageError
from orchestrator.storage import Storage


def fail_in_the_middle(storage: Storage, name: str) -> None:
    with contextlib.suppress(RuntimeError), storage.create(name) as file:
        file.write(b"half")
        raise RuntimeError


def test_files_are_read_as_written(storage: Storage) -> None:
    assert not storage.exists()
    assert (storage.names(), storage.names("a")) == ([], [])
    storage.delete("a")
    storage.write("a/b.txt", "a longer text")
    storage.write("a/b.txt", "text")
    storage.write("c.bin.gz", b"\x00\xff")
    assert storage.read("a/b.txt") == b"text"
    assert storage.read("c.bin.gz") == b"\x00\xff"
    assert storage.names() == ["a", "c.bin.gz"]
    assert storage.names("a") == ["b.txt"]


def test_file_is_read_from_an_offset(storage: Storage) -> None:
    before = time.time()
    storage.write("a/x", "0123456789")
    assert storage.read("a/x", 7) == b"789"
    assert storage.read("a/x", 10) == b""
    modified = storage.tree("a")["x"].modified
    # fsspec's memory does not say; a file system's clock ticks in coarser steps than Python's.
    assert modified is None if storage.local is None else before - 1 <= modified <= time.time()


def test_failed_write_leaves_the_old_file_or_none(storage: Storage) -> None:
    fail_in_the_middle(storage, "a/x")
    assert storage.names("a") == []
    storage.write("a/x", "old")
    fail_in_the_middle(storage, "a/x")
    assert (storage.read("a/x"), storage.names("a")) == (b"old", ["x"])


def test_text_is_appended(storage: Storage) -> None:
    storage.append("a/log.txt", "one\n")
    storage.append("a/log.txt", "two\n")
    assert storage.read("a/log.txt") == b"one\ntwo\n"


def test_stream_is_seen_only_with_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(StorageError, match="make room"):
        Storage(tmp_path).open_stream("a/rows", b"one")
    assert Storage(tmp_path).names("a") == []
    monkeypatch.undo()
    with Storage(tmp_path).open_stream("a/rows", b"one") as stream:
        assert Storage(tmp_path).read("a/rows") == b"one"
        stream.write(b"two")
        stream.flush()
        assert Storage(tmp_path).read("a/rows") == b"onetwo"


def test_rows_and_reports_do_not_recreate_a_missing_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    for write in (
        lambda: folder.storage.open_stream("stats/rows", b""),
        lambda: folder.append_report({"epoch": 0}),
    ):
        with pytest.raises(StorageError, match="missing"):
            write()
    assert not [*tmp_path.iterdir()]


def test_delete_removes_only_its_file_or_folder(storage: Storage) -> None:
    for name in ("a/b/c", "a/d", "e", "ab"):
        storage.write(name, "x")
    storage.delete("a")
    storage.delete("e")
    assert storage.names() == ["ab"]


@pytest.mark.parametrize("target", ["folder", "file", "nothing"])
def test_delete_of_a_link_leaves_its_target(tmp_path: Path, target: str) -> None:
    storage = Storage(tmp_path)
    storage.write("folder/a", "x")
    storage.write("file", "y")
    (tmp_path / "link").symlink_to(tmp_path / target)
    storage.delete("link")
    assert storage.names() == ["file", "folder"]
    assert storage.read("folder/a") == b"x"


def test_files_and_folders_are_renamed(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("a/b/c", "x")
    storage.write("d", "y")
    storage.rename("a", "e")
    storage.rename("d", "f")
    assert storage.names() == ["e", "f"]
    assert storage.read("e/b/c") == b"x"


# A folder


def test_write_does_not_follow_a_planted_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".x.{os.getpid()}.00000000").symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="File exists"):
        Storage(tmp_path).write("x", "theirs")
    assert (tmp_path / "mine").read_text() == "mine"


def test_file_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []
    sync = os.fsync
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (acts.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda a, b: (acts.append("replace"), replace(a, b)))
    Storage(tmp_path).write("x", "new")
    assert acts[:2] == ["sync", "replace"]


def test_folder_can_be_written_in_several_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for location in ("runs", f"file://{tmp_path}/runs", "~/runs", tmp_path / "runs"):
        assert Storage(location).local == tmp_path / "runs"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///tmp/x", "/tmp/x"),
        ("file://localhost/tmp/x", "/tmp/x"),
        ("FILE://LOCALHOST/tmp/x", "/tmp/x"),
        ("file:/tmp/x", "/tmp/x"),
        ("file:///tmp/a%20b%3Fc%23d", "/tmp/a b?c#d"),
    ],
)
def test_file_url_is_a_folder_of_this_machine(url: str, path: str) -> None:
    storage = Storage(url)
    assert (storage.local, storage.location, str(storage)) == (Path(path), path, path)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://server/runs", r"'file://server/runs' is on the host 'server'"),
        ("file://runs", r"'file://runs' is on the host 'runs'.*write file:///"),
        ("file://", r"'file://' has no path"),
        ("file://localhost", r"'file://localhost' has no path"),
        ("file:///runs?region=x", r"has options.*write \? as %3F and # as %23"),
        ("file:///runs#1", r"has options.*write \? as %3F and # as %23"),
        ("file://[/runs", r"'file://\[/runs' is not a valid URL"),
    ],
)
def test_other_file_urls_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        Storage(url)


@pytest.mark.parametrize("name", ["q?token=1", "a?key=b&c", "me@work"])
def test_local_folder_has_no_options(tmp_path: Path, name: str) -> None:
    storage = Storage(tmp_path / name)
    path = f"{tmp_path}/{name}"
    assert (str(storage), storage.path, storage.name) == (path, path, name)
    assert (str(storage / "run"), (storage / "run").parent.path) == (f"{path}/run", path)


def test_unknown_location_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"storage 'nowhere://bucket/runs' must be a folder or a URL"
    ):
        Storage("nowhere://bucket/runs")


def test_tree_lists_names_that_are_no_utf_8_and_follows_links(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    name = os.fsdecode(b"plot-\xff.png")
    (tmp_path / "run" / name).write_text("12")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_text("1")
    (tmp_path / "run/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run/lost").symlink_to(tmp_path / "nowhere")
    files = Storage(tmp_path / "run").tree()
    assert {name: state.size_bytes for name, state in files.items()} == {"link/a": 1, name: 2}


def test_a_link_that_leads_back_to_itself_is_missing(tmp_path: Path) -> None:
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "file").write_text("text")
    storage = Storage(tmp_path)
    assert [*storage.tree()] == ["file"]
    assert storage.tree("loop") == {}
    assert storage.names("loop") == []
    assert storage.state("loop") is None
    assert (storage / "loop").link_target == tmp_path / "loop"
    with pytest.raises(FileNotFoundError):
        storage.read("loop")


def test_tree_enters_no_link_to_a_folder_around_it(tmp_path: Path) -> None:
    links = {"here": ".", "all": "..", "a/other": "../b", "b/other": "../a", "b/same": "../c"}
    for name in ("a", "b", "c"):
        (tmp_path / "run" / name).mkdir(parents=True)
        (tmp_path / "run" / name / "file").write_text("text")
    for name, target in links.items():
        os.symlink(target, tmp_path / "run" / name)
    assert [*Storage(tmp_path / "run").tree()] == [
        "a/file",
        "a/other/file",
        "a/other/same/file",
        "b/file",
        "b/other/file",
        "b/same/file",
        "c/file",
    ]


def test_tree_lists_files_at_every_depth(storage: Storage) -> None:
    assert storage.tree() == storage.tree("nowhere") == {}
    for name in ("a/b/c.txt", "a/d.txt", "e.txt"):
        storage.write(name, name)
    assert {name: state.size_bytes for name, state in storage.tree().items()} == {
        "a/b/c.txt": 9,
        "a/d.txt": 7,
        "e.txt": 5,
    }
    assert [*storage.tree("a")] == ["b/c.txt", "d.txt"]


def test_a_file_in_the_place_of_a_folder_and_a_folder_in_that_of_a_file_are_named(
    tmp_path: Path,
) -> None:
    storage = Storage(tmp_path)
    storage.write("folder/file", "x")
    with pytest.raises(
        StorageError, match=r"file: Not a directory\. A file has the name of a folder: move it away"
    ):
        storage.names("folder/file")
    for use in (
        storage.read,
        partial(storage.open_stream, start=b""),
        partial(storage.append, data="x"),
    ):
        with pytest.raises(
            StorageError, match=r"folder: Is a directory\. A folder has the name of a file"
        ):
            use("folder")
    with pytest.raises(StorageError, match="folder: "):
        storage.open("folder")


def test_file_is_read_in_pieces_with_its_state(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.storage.local_files._PIECE_BYTES", 4)
    monkeypatch.setattr("orchestrator.storage.remote_files._PIECE_BYTES", 4)
    storage.write("a/file", b"0123456789")
    assert [*storage.read_chunks("a/file")] == [b"0123", b"4567", b"89"]
    state = storage.state("a/file")
    assert state is not None
    assert state.size_bytes == 10
    assert (storage.state("a/none"), storage.state("a")) == (None, None)
    with storage.open_copy("a/file") as copy:
        copy.seek(4)
        assert copy.read() == b"456789"
    for none in ("a/none", "a/file/below"):
        with pytest.raises(FileNotFoundError):
            next(storage.read_chunks(none))
        with pytest.raises(FileNotFoundError), storage.open_copy(none):
            pass
        with pytest.raises(FileNotFoundError):
            storage.read(none)


def test_each_keeps_the_order_also_when_nested(storage: Storage) -> None:
    for number in range(50):
        storage.write(f"{number % 5}/{number}", str(number))

    def inside(folder: str) -> list[bytes]:
        return storage.map(lambda name: storage.read(f"{folder}/{name}"), storage.names(folder))

    assert [len(own) for own in storage.map(inside, storage.names())] == [10] * 5
    assert storage.map(inside, ["3"]) == [
        [str(number).encode() for number in sorted(range(3, 50, 5), key=str)]
    ]
    with pytest.raises(FileNotFoundError):
        storage.map(storage.read, ["0/0", "none", "1/1"])


def test_parent_and_other_paths_are_storages(location: str) -> None:
    storage = Storage(location) / "runs" / "one"
    storage.write("file", b"x")
    around = storage.parent
    assert (around.names(), around.path, around.name) == (["one"], f"{location}/runs", "runs")
    assert (Storage(f"{location}/runs/").parent / "runs").names() == ["one"]
    there = around.at(f"{location}/runs/one")
    assert (there.read("file"), there.root, there.location) == (
        b"x",
        storage.root,
        storage.location,
    )


@pytest.mark.parametrize(
    "read", [Storage.read, Storage.open, lambda storage, name: [*storage.read_chunks(name)]]
)
def test_pipe_in_place_of_a_file_is_refused(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(StorageError, match="pipe"):
        read(Storage(str(tmp_path)), "run.json")
