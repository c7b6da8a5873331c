"""What docs/security.md says of files and runs that come from strangers."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import Run, run
from orchestrator.cli import app
from orchestrator.config import bounds
from orchestrator.config.load import experiment_from_dict, load_experiment
from orchestrator.errors import ConfigError

PAGE = (Path(__file__).parents[1] / "docs/security.md").read_text()
MODULE = """\
from dataclasses import dataclass
from tests.orchestrator.config.samples import Line

@dataclass
class Theirs(Line):
    remark: str = ""
"""
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a stranger's task, whose module is by now one that must not be imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text(MODULE)
    hooks = {"odd": {"type": "json_lines"}}
    said = {"name": "line", "task": "theirs:Theirs", "task_args": {"remark": MARKUP}, "epochs": 1, "hooks": hooks}
    experiment = experiment_from_dict(said, [tmp_path])
    done = run(experiment, tmp_path / "runs", local=True)
    del sys.modules["theirs"]
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')\n")
    return done


def test_looking_at_a_run_imports_none_of_its_classes(theirs: Run, tmp_path: Path) -> None:
    path = theirs.path
    for words in (
        ["ls", "--storage", str(tmp_path / "runs")],
        ["show", path],
        ["stats", path],
        ["compare", path, path],
        ["doctor", path],
        ["report", path],
        ["watch", path],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output)
    assert "theirs" not in sys.modules
    page = (Path(path) / "report.html").read_text()
    assert MARKUP not in page
    assert escape(MARKUP) in page


def test_checking_a_file_imports_what_it_names_and_outlives_that(theirs: Run, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("name: x\ntask: theirs:Theirs\nepochs: 1\n")
    with pytest.raises(ConfigError, match=r"file.yaml:2: task: module 'theirs' cannot be imported: SystemExit: imported"):
        load_experiment(tmp_path / "file.yaml")


def test_control_characters_of_a_file_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text('name: "\\e[2Jx"\ntask: "\\e]0;t\\a"\nepochs: 1\n')
    result = CliRunner().invoke(app, ["validate", str(tmp_path / "file.yaml")])
    assert result.exit_code == 2
    assert r"\x1b" in result.stderr
    assert "\x1b" not in result.stderr


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    for number in (bounds.WRITTEN.values, bounds.LONGEST_PATH, bounds.MOST_TRIED, bounds.MOST_TRIALS, bounds.MOST_OVERRIDES, bounds.MOST_LISTED):
        assert f"{number:,}" in PAGE
    assert f"{bounds.WRITTEN.characters // 1024} KiB" in PAGE
    assert f"| {bounds.DEEPEST} |" in PAGE
    assert f"; {bounds.MOST_HOOKS} |" in PAGE
    assert f"| {bounds.MOST_SWEPT}; " in PAGE
