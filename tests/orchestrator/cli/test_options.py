"""What a Tab completes, as a shell asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hooks import HOOKS
from orchestrator.cli import PANELS, app
from orchestrator.cli.options import complete_hooks, complete_runs
from tests.orchestrator.runs.written import written_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        written_run(tmp_path / "runs", name)
    (tmp_path / "runs" / "other").mkdir()
    return tmp_path


def completed(*words: str) -> list[str]:
    """What is offered for the last of the words."""
    asked = {
        "COMP_WORDS": " ".join(["hookyard", *words]),
        "COMP_CWORD": str(len(words)),
        "_HOOKYARD_COMPLETE": "complete_bash",
    }
    return CliRunner().invoke(app, [], prog_name="hookyard", env=asked).output.split()


@pytest.mark.parametrize(
    "verb",
    [
        "show",
        "watch",
        "stats",
        "samples",
        "replay",
        "report",
        "resume",
        "doctor",
        "compare",
        "note",
        "rm",
    ],
)
def test_runs_are_completed(folder: Path, verb: str) -> None:
    assert completed(verb, "r") == ["runs/first", "runs/second"]
    assert completed(verb, "runs/se") == ["runs/second"]


def test_trials_are_completed(folder: Path) -> None:
    written_run(folder / "runs" / "first" / "trials", "trial-0000")
    assert complete_runs("runs/first/trials/") == ["runs/first/trials/trial-0000"]
    assert complete_runs("./runs/fi") == ["./runs/first"]
    assert complete_runs("nowhere/") == []


def test_hooks_are_completed() -> None:
    assert complete_hooks("") == sorted(HOOKS)
    assert completed("hooks", "gr") == ["gradient_clip"]


def test_completion_imports_neither_ray_nor_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom orchestrator.cli import app\n"
        "try: app(prog_name='hookyard')\n"
        "finally: print(*sorted({'torch', 'ray', 'pandas', 'pyarrow'} & sys.modules.keys()))"
    )
    asked = {
        "COMP_WORDS": "hookyard hooks em",
        "COMP_CWORD": "2",
        "_HOOKYARD_COMPLETE": "complete_bash",
    }
    came = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert came.stdout.split() == ["ema", "empty_cache"]


@pytest.mark.parametrize(
    "verb", [[], *([verb.__name__] for verbs in PANELS.values() for verb in verbs)]
)
def test_help_shows_no_type_beside_a_flag(verb: list[str]) -> None:
    assert "bool" not in CliRunner().invoke(app, [*verb, "--help"]).stdout
