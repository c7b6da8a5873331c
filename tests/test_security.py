"""What docs/places/security.md says of files and runs that come from strangers."""

import json
import re
import shutil
import sys
from collections.abc import Container
from html import escape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import Run, run, sweep
from orchestrator.cli import app
from orchestrator.experiment.load import make_experiment
from orchestrator.experiment.sections.domain import MAX_VALUES
from orchestrator.experiment.sections.sweep import MAX_PATHS
from orchestrator.experiment.sweep.check_values import MAX_CHECKED_VALUES
from orchestrator.experiment.sweep.trial_counts import MAX_TRIALS
from orchestrator.experiment.yaml.dialect import MAX_DEPTH
from orchestrator.experiment.yaml.reader import MAX_BYTES
from tests.tasks import described

PAGE = (Path(__file__).parents[1] / "docs/places/security.md").read_text()
MODULE = """\
from dataclasses import dataclass
from tests.orchestrator.experiment.samples import Line

@dataclass
class Theirs(Line):
    remark: str = ""
"""
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a stranger's task, whose module is by now one that must not be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "theirs.py").write_text(MODULE)
    hooks = {"odd": {"type": "json_lines"}}
    said = {
        "name": "line",
        "task": "theirs:Theirs",
        "task_args": {"remark": MARKUP},
        "epochs": 1,
        "hooks": hooks,
    }
    experiment = make_experiment(said, [tmp_path])
    done = run(experiment, tmp_path / "runs", local=True)
    del sys.modules["theirs"]
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')\n")
    return done


def test_looking_at_a_run_imports_none_of_its_classes(theirs: Run, tmp_path: Path) -> None:
    path = str(theirs.path)
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


def test_control_characters_of_a_file_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text('name: "\\e[2Jx"\ntask: "\\e]0;t\\a"\nepochs: 1\n')
    result = CliRunner().invoke(app, ["validate", str(tmp_path / "file.yaml")])
    assert result.exit_code == 2
    assert r"\x1b" in result.stderr
    assert "\x1b" not in result.stderr


EVIL = "\x1b]0;gone\x07\x9b31m\u202e\u2028\r\nfake  finished <script>alert(1)</script>"
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def hostile(value: Any, keep: Container[str]) -> Any:
    """JSON data with something evil in every text and every name, but for the keys that are
    kept."""
    if isinstance(value, dict):
        extra = {} if keep else {EVIL: EVIL}
        return {
            key: item if key in keep else hostile(item, keep) for key, item in value.items()
        } | extra
    if isinstance(value, list):
        return [hostile(item, keep) for item in value]
    return value + EVIL if isinstance(value, str) else value


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a sweep that are over, with a checkpoint."""
    root = tmp_path_factory.mktemp("plain")
    hooks = {"checkpoint": {"every": 1, "best": "val/accuracy", "mode": "max"}}
    run(described(epochs=1, hooks=hooks), root, "line", local=True)
    space = {"optimizer.lr": {"grid": [0.1, 0.01]}}
    sweep(
        described(
            epochs=1, hooks=hooks, sweep={"metric": "val/accuracy", "mode": "max", "space": space}
        ),
        root,
        "swept",
        local=True,
    )
    return root


MEANT = {
    *"status started ended engine mode metric objectives modes time sha256 checkpoint boot process_started".split(),
}


@pytest.mark.parametrize("name", ["line", "swept"])
@pytest.mark.parametrize(
    "keep", [frozenset(MEANT), frozenset()], ids=["what is free", "everything"]
)
def test_texts_of_a_stored_run_are_escaped(
    plain: Path, tmp_path: Path, name: str, keep: frozenset[str]
) -> None:
    folder = shutil.copytree(plain / name, tmp_path / "runs" / name)
    for aside in ("index", ".driver"):  # whose lines are no JSON; whose drivers would be waited for
        shutil.rmtree(folder / aside, ignore_errors=True)
    for file in folder.rglob("*.json*"):
        changed = [
            json.dumps(
                hostile({one: item for one, item in json.loads(line).items() if one != "crc"}, keep)
            )
            for line in _texts(file)
        ]
        file.write_text("\n".join(changed) + "\n")
    for file in folder.rglob("metrics.jsonl"):
        line = json.loads(file.read_text().splitlines()[-1])
        file.write_text(json.dumps({**line, "error": EVIL, f"val/{EVIL}": 0.5}) + "\n")
    for file in folder.rglob("run.json"):
        file.write_text(
            json.dumps(
                {
                    **json.loads(file.read_text()),
                    "error": EVIL,
                    "stopped": [EVIL],
                    "tags": [EVIL],
                    "notes": EVIL,
                }
            )
        )
    (folder / "checkpoints" / EVIL.replace("/", "")).mkdir(parents=True)
    path = str(folder)
    for words in (
        *(["ls", "--storage", str(folder.parent), *form] for form in ([], ["--json"])),
        *([verb, path, *form] for verb in ("show", "stats", "watch") for form in ([], ["--json"])),
        *(["compare", path, path, *form] for form in ([], ["--json"])),
        *(["doctor", path, *form] for form in ([], ["--files"], ["--files", "--json"])),
        ["stats", path, "--format", "csv"],
        ["show", path, "--yaml"],
        ["report", path],
        ["rm", path],
        ["resume", path],
        ["run", f"{path}@best"],
        ["note", path, "x"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            words,
            result.exception,
        )
        assert not CONTROL.search(result.stdout + result.stderr), words
        assert words[0] == "watch" or not any(
            line.startswith("fake") for line in result.stdout.splitlines()
        ), words
    page = folder / "report.html"
    assert page.exists() or not keep
    assert not page.exists() or "<script>alert" not in page.read_text()


def _texts(file: Path) -> list[str]:
    text = file.read_text()
    return text.splitlines() if file.suffix == ".jsonl" else [text]


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    for number in (MAX_CHECKED_VALUES, MAX_TRIALS, MAX_VALUES):
        assert f"{number:,}" in PAGE
    assert f"{MAX_BYTES // 1024} KiB" in PAGE
    assert f"| {MAX_DEPTH} |" in PAGE
    assert f"| {MAX_PATHS}; " in PAGE
