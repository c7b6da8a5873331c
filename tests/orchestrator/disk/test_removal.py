"""Removing runs: what is told, what is refused, and what is gone afterwards."""

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hooks.position import Position
from orchestrator import UsageError
from orchestrator.cli import app
from orchestrator.disk.checkpoint_folder import find_checkpoint_folder
from orchestrator.disk.new_run import create_run, taking_name
from orchestrator.disk.removal import plan_removal
from orchestrator.disk.run_folder import RunFolder
from orchestrator.errors import StorageError
from orchestrator.storage import Storage
from tests.orchestrator.runs.written import new_run

MANIFEST = {
    "name": "epoch-0001",
    "files": {"model.pt": {"sha256": "0", "bytes": 1}},
    "world_size": 1,
    "metrics": {},
    "main_metric": "",
    "evaluations": {"": ""},
}


def made(
    root: Path | str,
    name: str,
    experiment: str = "hooks: {}\n",
    status: str = "finished",
    **metadata: object,
) -> RunFolder:
    folder = new_run(root, name, experiment, **metadata)
    folder.storage.write("stats/attempt=0/rows", b"1234")
    if status != "running":
        folder.run_file.end(status)
    return folder


def checkpoint(folder: RunFolder) -> None:
    position = asdict(Position(epoch=1, iteration=1, step=1, samples=1))
    find_checkpoint_folder(folder).write(
        "epoch-0001/manifest.json", json.dumps({**MANIFEST, "position": position})
    )


def test_run_is_removed_with_yes(tmp_path: Path) -> None:
    made(tmp_path, "kept")
    folder = made(tmp_path, "gone")
    asked = CliRunner().invoke(app, ["rm", str(folder)])
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert folder.exists()
    done = CliRunner().invoke(app, ["rm", str(folder), "--yes"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"{folder}: a run, finished" in done.stderr
    assert "3 files" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_checkpoints_outside_the_folder_go_with_the_run(tmp_path: Path) -> None:
    folder = made(
        tmp_path / "runs", "one", f"hooks: {{checkpoint: {{out_dir: {tmp_path / 'kept'}}}}}\n"
    )
    checkpoint(folder)
    (tmp_path / "kept" / "other").mkdir()
    removal = plan_removal(str(folder))
    assert f"with its checkpoints in {tmp_path / 'kept' / 'one'}" in removal.describe()
    removal.execute()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["other"]


def test_checkpoints_of_trials_outside_the_folder_go_with_the_sweep(tmp_path: Path) -> None:
    experiment = f"hooks: {{checkpoint: {{out_dir: {tmp_path / 'kept'}}}}}\n"
    objectives = {"objectives": [["val/loss", "min"]], "trials": 1}
    for name in ("first", "second"):
        folder = made(tmp_path / "runs", name, experiment, sweep=objectives)
        checkpoint(made(f"{folder}/trials", "trial-0000", experiment))
    removal = plan_removal(str(tmp_path / "runs" / "first"))
    lines = removal.describe().splitlines()
    assert lines[1:] == [f"  with its checkpoints in {tmp_path / 'kept' / 'first'}"]
    removal.execute()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["second"]


def test_run_that_another_continues_is_kept_until_it_has_checkpoints(tmp_path: Path) -> None:
    folder = made(tmp_path, "first")
    before = {"run": str(folder), "checkpoint": "epoch-0001", "sha256": "", "epoch": 1, "step": 1}
    longer = made(tmp_path, "longer", continued_from=before)
    with pytest.raises(
        UsageError, match=r"longer continues from .*first, and has no checkpoint of its own yet"
    ):
        plan_removal(str(folder))
    checkpoint(longer)
    plan_removal(str(folder)).execute()
    assert not folder.exists()
    assert longer.exists()


def test_running_run_and_trial_are_not_removed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is running"):
        plan_removal(str(made(tmp_path, "live", status="running")))
    sweep = made(tmp_path, "sweep", sweep={"objectives": [["val/loss", "min"]], "trials": 1})
    trial = made(f"{sweep}/trials", "trial-0000")
    with pytest.raises(UsageError, match=f"is a trial.*hookyard rm {sweep}"):
        plan_removal(str(trial))
    assert "a sweep of 1 trial," in plan_removal(str(sweep)).describe()
    with pytest.raises(UsageError, match="is not a run"):
        plan_removal(str(tmp_path))


def test_damaged_run_can_be_removed(tmp_path: Path) -> None:
    folder = made(tmp_path, "one")
    made(tmp_path, "other").storage.write("run.json", "{")
    folder.storage.write("run.json", "5")
    folder.storage.write("experiment.yaml", "[")
    removal = plan_removal(str(folder))
    assert "a run, damaged" in removal.describe()
    removal.execute()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_nothing_is_removed_where_one_of_several_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path, "one")
    refused = CliRunner().invoke(app, ["rm", str(folder), str(tmp_path / "none"), "--yes"])
    assert refused.exit_code == 2
    assert folder.exists()


def test_interrupted_removal_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, "one")
    removal = plan_removal(str(folder))

    def fails(storage: Storage, name: str) -> None:
        raise OSError("gone")

    monkeypatch.setattr(Storage, "delete", fails)
    with pytest.raises(OSError, match="gone"):
        removal.execute()
    assert folder.exists()
    monkeypatch.undo()
    removal.execute()
    assert list(tmp_path.iterdir()) == []


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def linked_run(root: Path) -> tuple[Path, Path]:
    """Make a run on another disk; return the link to it in the storage, and its own folder."""
    target = root / "disk" / "one"
    made(target.parent, "one")
    link = root / "runs" / "one"
    link.parent.mkdir()
    link.symlink_to(target)
    return link, target


def test_only_the_link_to_a_run_is_removed(tmp_path: Path) -> None:
    link, target = linked_run(tmp_path)
    files = {"experiment.yaml", "run.json", "stats/attempt=0/rows"}
    done = CliRunner().invoke(app, ["rm", str(link), "--yes"])
    assert done.exit_code == 0
    text = f"{link}: a link, which alone is removed; to remove its run: hookyard rm {target}\n"
    assert done.stderr == text
    assert not link.is_symlink()
    assert files <= set(list_files(target))
    assert CliRunner().invoke(app, ["rm", str(target), "--yes"]).exit_code == 0
    assert not target.exists()


def test_link_whose_run_is_gone_is_named_and_removed(tmp_path: Path) -> None:
    link, target = linked_run(tmp_path)
    plan_removal(str(target)).execute()
    reason = f"{link} is a link to {target}, which does not exist"
    for use in (
        lambda: RunFolder.open(link),
        lambda: create_run(link.parent, "one", "hooks: {}\n"),
    ):
        with pytest.raises(UsageError, match=f"{reason}. To remove the link: hookyard rm {link}"):
            use()
    done = CliRunner().invoke(app, ["rm", str(link), "--yes"])
    assert done.exit_code == 0
    assert done.stderr == f"{link}: a link to {target}, which does not exist\n"
    assert not link.is_symlink()


def test_replaced_link_leaves_its_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link, target = linked_run(tmp_path)
    with taking_name(RunFolder(link.parent, "one"), "replace"):
        assert not link.is_symlink()
    text = f"Replacing {link}, a link to {target}: the run there stays"
    assert caplog.messages[-1] == text
    assert "stats/attempt=0/rows" in list_files(target)


@pytest.mark.parametrize("name", ["checkpoints", "trials/trial-0000"])
def test_target_of_a_link_in_a_run_stays(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "runs", "one")
    target = tmp_path / "disk"
    target.mkdir()
    (target / "model.pt").write_bytes(b"12")
    link = tmp_path / "runs" / "one" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    removal = plan_removal(str(folder))
    first, second = removal.describe().splitlines()
    assert "3 files" in first
    assert second == f"  without {target}, to which {link} is a link"
    removal.execute()
    assert not any((tmp_path / "runs").iterdir())
    assert list_files(target) == ["model.pt"]


def test_target_of_linked_checkpoints_outside_the_folder_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    folder = made(tmp_path / "runs", "one", f"hooks: {{checkpoint: {{out_dir: {kept}}}}}\n")
    target = tmp_path / "disk"
    target.mkdir()
    kept.mkdir()
    (kept / "one").symlink_to(target)
    checkpoint(folder)
    removal = plan_removal(str(folder))
    assert (
        f"  without {target}, to which {kept / 'one'} is a link" in removal.describe().splitlines()
    )
    removal.execute()
    assert not any(kept.iterdir())
    assert list_files(target) == ["epoch-0001/manifest.json"]


def test_run_remains_a_run_if_a_file_cannot_be_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, "one")
    unlink = os.unlink

    def refuse_rows(path: str, **options: Any) -> None:
        if Path(path).name == "rows":
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    with monkeypatch.context() as context:
        context.setattr(os, "unlink", refuse_rows)
        with pytest.raises(StorageError, match=rf"removed only in part: {tmp_path}/one/stats"):
            plan_removal(str(folder)).execute()
    assert (
        f"{tmp_path}/one/stats/attempt=0/rows cannot be deleted: Permission denied" in caplog.text
    )
    plan_removal(str(folder)).execute()
    assert not (tmp_path / "one").exists()
