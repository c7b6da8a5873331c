"""Checks of each file of a run and of a sweep: what was harmed is named."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hooks import Hook, State
from orchestrator import RunError, resume, run, sweep
from orchestrator.cli import app
from orchestrator.disk.run_folder import RunFolder
from orchestrator.doctor.integrity import check_files
from orchestrator.engines.session import Session
from orchestrator.loop.world import World
from tests.orchestrator.cli.test_every_damage import HARMS
from tests.orchestrator.runs.several_ranks import create
from tests.tasks import described

HOOKS = {"checkpoint": {"every": 1, "best": "val/accuracy"}, "json_lines": True}
MAY_BE_MISSING = ("source.json", "hooks.parquet", "trials.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a sweep of two trials, that are over."""
    root = tmp_path_factory.mktemp("runs")
    run(described(hooks=HOOKS), root, "alone", local=True)
    space = {"optimizer.lr": {"grid": [0.1, 0.01]}}
    sweep(
        described(epochs=1, sweep={"metric": "val/accuracy", "mode": "max", "space": space}),
        root,
        "swept",
        local=True,
    )
    return root


def wrong(folder: Path) -> dict[str, str]:
    """The files that are damaged or missing, each with which."""
    return {
        one.file: one.status for one in check_files(RunFolder(folder)) if one.is_damaged_or_missing
    }


def files_of(folder: Path) -> list[Path]:
    return [
        file for file in sorted(folder.rglob("*")) if file.is_file() and ".driver" not in file.parts
    ]


def test_every_file_has_a_status(runs: Path) -> None:
    statuses = {one.file: one.status for one in check_files(RunFolder(runs / "alone"))}
    paths = {str(file.relative_to(runs / "alone")) for file in files_of(runs / "alone")}
    assert statuses.keys() == paths
    of_kind = {Path(path).suffix: status for path, status in statuses.items()}
    assert (of_kind[".pt"], of_kind[".parquet"]) == ("intact", "intact")
    assert (of_kind[".json"], of_kind[".yaml"]) == ("readable", "readable")
    assert statuses["metrics.jsonl"] == "intact"
    assert statuses["log.txt"] == "unknown"


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("swept", "flipped"),
        *(("alone", harm) for harm in ("flipped", "truncated", "empty", "missing", "folder")),
    ],
)
def test_damage_of_any_file_is_found(runs: Path, tmp_path: Path, name: str, harm: str) -> None:
    """One flipped bit is found in checkpoints and in lines, which have checksums."""
    folder = shutil.copytree(runs / name, tmp_path / name)
    for checked in [*check_files(RunFolder(folder))]:
        file = folder / checked.file
        has_checksums = checked.status == "intact" and file.suffix in (".pt", ".jsonl")
        is_checked = checked.status in ("intact", "readable") and file.name not in MAY_BE_MISSING
        if not (has_checksums if harm == "flipped" else is_checked):
            continue

        data = file.read_bytes()
        HARMS[harm](file)
        assert checked.file in wrong(folder), checked.file
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        file.write_bytes(data)
    assert wrong(folder) == {}


def test_file_that_is_valid_where_it_was_cut_is_found(runs: Path, tmp_path: Path) -> None:
    """Most of the cuts of this file leave valid YAML."""
    folder = shutil.copytree(runs / "alone", tmp_path / "alone")
    file = folder / "experiment.yaml"
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    for number in range(1, len(lines) - 1):
        file.write_text("".join(lines[:number]) + lines[number][:-1])
        assert "experiment.yaml" in wrong(folder)


def test_command_reports_damage_place_and_advice(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "swept", tmp_path / "swept")
    result = CliRunner().invoke(app, ["doctor", str(folder), "--files"])
    assert (result.exit_code, result.stderr) == (0, "")
    lines = folder / "trials/trial-0001/metrics.jsonl"
    lines.write_text(lines.read_text().replace('"epoch": 0', '"epoch": 1'))
    (folder / "trials/trial-0000/checkpoints/epoch-0001/model.pt").unlink()
    result = CliRunner().invoke(app, ["doctor", str(folder), "--files"])
    assert (result.exit_code, result.stderr) == (1, "")
    assert "line 1 is left out: its checksum does not match" in result.stdout
    assert (
        "trials/trial-0000/checkpoints/epoch-0001/model.pt: `resume` uses the newest intact checkpoint instead"
        in result.stdout
    )
    assert f"{folder}: 1 damaged, 1 missing, " in result.stdout
    told = json.loads(CliRunner().invoke(app, ["doctor", str(folder), "--files", "--json"]).stdout)
    assert told["intact"] is False
    assert {
        one["file"]: one["status"]
        for one in told["files"]
        if one["status"] in ("damaged", "missing")
    } == wrong(folder)


def test_checkpoints_outside_their_run_have_full_paths(tmp_path: Path) -> None:
    """The files of a sweep and of its trials have paths in the sweep's folder."""
    hooks = {"checkpoint": {"out_dir": str(tmp_path / "kept")}}
    settings = {
        "metric": "val/accuracy",
        "mode": "max",
        "space": {"optimizer.lr": {"grid": [0.1, 0.01]}},
    }
    sweep(described(epochs=1, hooks=hooks, sweep=settings), tmp_path / "runs", "swept", local=True)
    folder = tmp_path / "runs" / "swept"
    paths = [checked.file for checked in check_files(RunFolder(folder))]
    inside = [str(file.relative_to(folder)) for file in files_of(folder)]
    outside = [str(file) for file in files_of(tmp_path / "kept")]
    assert len(outside) > 2
    assert sorted(paths) == sorted([*inside, *outside])

    weights = tmp_path / "kept" / "swept" / "trial-0001" / "epoch-0001" / "model.pt"
    weights.write_bytes(b"")
    assert wrong(folder) == {str(weights): "damaged"}


@dataclass
class Fails(Hook):
    """Fails in an epoch."""

    epoch: int = 1

    def on_batch(self, state: State) -> None:
        if state.phase == "train" and state.epoch == self.epoch:
            raise ArithmeticError("broken on purpose")


@pytest.mark.parametrize(
    "task", ["tests.tasks:Points", "tests.orchestrator.loop.custom.test_custom_loop:Fitted"]
)
def test_rows_missing_since_the_last_report_are_found(tmp_path: Path, task: str) -> None:
    reports = Session(create(described(task=task), tmp_path, "running"), World()).reports()
    next(reports)
    folder = shutil.copytree(tmp_path / "running", tmp_path / "killed")
    list(reports)
    assert wrong(folder) == {}
    costs, rows = sorted(folder.glob("stats/attempt=0/rank=0/*.arrow"))
    for file in (costs, rows):
        data = file.read_bytes()
        for length in (0, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:length])
            assert wrong(folder) == {str(file.relative_to(folder)): "damaged"}
        file.write_bytes(data)
    rows.unlink()
    assert wrong(folder) == {"stats/": "missing"}


def test_reports_cut_off_the_end_of_their_file_are_missing(runs: Path, tmp_path: Path) -> None:
    """At the end of a run, and before the end of a part that a later attempt continued."""
    ended = shutil.copytree(runs / "alone", tmp_path / "ended")
    lines = (ended / "metrics.jsonl").read_text().splitlines(keepends=True)
    (ended / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert wrong(ended) == {"metrics.jsonl": "damaged"}
    fails = {"type": f"{__name__}:Fails", "epoch": 2}
    with pytest.raises(RunError):
        run(described(epochs=3, hooks={**HOOKS, "fails": fails}), tmp_path, "failed", local=True)
    (tmp_path / "failed" / "metrics.jsonl").write_text("")
    with pytest.raises(RunError):
        resume(tmp_path / "failed")
    assert wrong(tmp_path / "failed") == {"metrics.jsonl": "missing"}


def test_files_of_no_run_are_a_usage_error(tmp_path: Path) -> None:
    for words in (["doctor", "--files"], ["doctor", str(tmp_path), "--files"]):
        assert CliRunner().invoke(app, words).exit_code == 2
