from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from orchestrator.cluster import packing
from orchestrator.cluster.packing import pack
from orchestrator.errors import UsageError

SENT = {
    "study/task.py": "code",
    "study.yaml": "name: study",
    "new.py": "not added yet",
    ".gitignore": "*.bin\n/data/\n",
    "checkpointing/here.py": "code",
}
LEFT = {
    "weights.bin": "ignored",
    "data/train.csv": "ignored",
    "runs/first/log.txt": "the default storage",
    "checkpoints/epoch-0001/model.pt": "checkpoints",
    "elsewhere/second/run.json": "a run",
    "elsewhere/second/stats/rows.arrow": "a run's",
    "big/points/epoch-0001/manifest.json": "a checkpoint",
    "big/points/epoch-0001/model.pt": "a checkpoint's",
    "environment/pyvenv.cfg": "an environment",
    "environment/lib/python.py": "an environment's",
}


@pytest.fixture(params=["repository", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for name, text in {**SENT, **LEFT}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if request.param == "repository":
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
        subprocess.run(["git", "-C", str(tmp_path), "add", "study", "study.yaml"], check=True)
    return tmp_path


def test_code_is_sent_and_what_git_ignores_and_what_runs_made_is_not(folder: Path) -> None:
    packed = pack(folder)
    assert packed.sizes_bytes == {name: len(text) for name, text in sorted(SENT.items())}
    assert packed.total_bytes == sum(map(len, SENT.values()))
    inside = [name for name in LEFT if name.split("/")[0] in ("runs", "checkpoints", "elsewhere", "big", "environment")]
    assert all(any(name.startswith(f"{out}/") for out in packed.left_out) for name in inside)
    assert not any(name.startswith(f"{out}/") for name in SENT for out in packed.left_out)
    assert not (folder / ".git").exists() or (folder / ".git/index").exists()


def test_only_the_folder_of_a_repository_that_it_is_called_in_is_sent(folder: Path) -> None:
    assert pack(folder / "study").sizes_bytes == {"task.py": 4}


def test_a_tracked_file_that_is_gone_is_not_missed(folder: Path) -> None:
    (folder / "study.yaml").unlink()
    assert set(pack(folder).sizes_bytes) == set(SENT) - {"study.yaml"}


def test_the_archive_holds_the_files_and_the_same_files_make_the_same_one(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    there = tmp_path_factory.mktemp("there")
    pack(folder).write(there / "one.zip")
    (folder / "new.py").write_text(SENT["new.py"])
    pack(folder).write(there / "two.zip")
    with zipfile.ZipFile(there / "one.zip") as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == SENT
    assert (there / "one.zip").read_bytes() == (there / "two.zip").read_bytes()


def test_more_than_code_is_refused_with_the_largest_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "study/faces.npy").write_bytes(b"x" * 3 * 2**20)
    assert pack(folder).biggest(1) == ["3.0 MiB  study/faces.npy"]
    pack(folder).refuse_if_large()
    monkeypatch.setattr(packing, "LIMIT_BYTES", 2**20)
    with pytest.raises(
        UsageError, match=r"6 files, 3\.0 MiB, and at most 1\.0 MiB(?s:.*)3\.0 MiB  study/faces\.npy(?s:.*)\.gitignore"
    ):
        pack(folder).refuse_if_large()


def test_the_limit_is_100_mib() -> None:
    assert packing.LIMIT_BYTES == 100 * 1024 * 1024


def test_without_git_nothing_is_guessed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="git is not installed"):
        pack(folder)
