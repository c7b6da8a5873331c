"""`hookyard report`."""

import json
from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.experiment.yaml.reader import load_yaml
from tests.orchestrator.doctor.runs import FALLING, training


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps({"name": "digits", "status": "finished", "started": "2026-01-01T00:00:00Z"})
    )
    (folder / "experiment.yaml").write_text("name: digits\n")
    training(2, loss=FALLING).assign(attempt=0, samples=32).to_parquet(folder / "stats.parquet")
    return folder


@pytest.mark.parametrize(
    "line",
    ["notes: 'one\u2028two'", 'notes: "one\\Ltwo"  # \u202e', 'notes: "one\u200e\\u2028two"'],
)
def test_shown_yaml_reads_as_the_file(run: Path, line: str) -> None:
    text = f"name: digits\n{line}\n"
    (run / "experiment.yaml").write_text(text)
    shown = CliRunner().invoke(app, ["show", str(run), "--yaml"]).stdout
    assert load_yaml(shown, "shown") == load_yaml(text, "file")


def test_report_is_written_into_the_run(run: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{run}/report.html\n", "")
    assert "<title>digits - Hookyard</title>" in (run / "report.html").read_text()


def test_report_can_be_written_elsewhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["report", str(run), "--output", "pages/digits.html"])
    assert refused.exit_code == 2
    assert refused.stderr == "cannot write pages/digits.html: the folder pages does not exist\n"
    (tmp_path / "pages").mkdir()
    assert (
        CliRunner().invoke(app, ["report", str(run), "--output", "pages/digits.html"]).exit_code
        == 0
    )
    assert (
        CliRunner().invoke(app, ["report", str(run), "--output", "here.html"]).stdout
        == f"{tmp_path}/here.html\n"
    )
    assert (tmp_path / "pages" / "digits.html").exists()
    assert not (run / "report.html").exists()


def test_report_is_written_into_object_storage(run: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(run), "/report-test", recursive=True)
    try:
        result = CliRunner().invoke(app, ["report", "memory://report-test"])
        assert (result.exit_code, result.stdout) == (0, "memory://report-test/report.html\n")
        assert memory.cat("/report-test/report.html").startswith(b"<!DOCTYPE html>")
        result = CliRunner().invoke(
            app, ["report", str(run), "--output", "memory://report-test/pages/digits.html"]
        )
        assert (result.exit_code, result.stdout) == (0, "memory://report-test/pages/digits.html\n")
        assert memory.cat("/report-test/pages/digits.html").startswith(b"<!DOCTYPE html>")
    finally:
        memory.rm("/report-test", recursive=True)


def test_report_refuses_wrong_usage_and_writes_nothing(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for arguments, words in (
        ([str(tmp_path)], "is not a run"),
        ([str(run), "--output", f"{tmp_path}/"], "is a folder; give a file name"),
        ([str(run), "--output", f"{tmp_path}/file/page.html"], "cannot write"),
        ([str(run), "--output", str(tmp_path / "digits")], "is a folder; give a file name"),
    ):
        result = CliRunner().invoke(app, ["report", *arguments])
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "file"]
    assert sorted(path.name for path in run.iterdir()) == [
        "experiment.yaml",
        "run.json",
        "stats.parquet",
    ]
