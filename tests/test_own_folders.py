"""A user's own folders, whatever they are called, beside an installed Hookyard."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[1]

EXPERIMENT = """
name: mine
task: experiments.t:T
epochs: 1
batch_size: 50
workers: {count: 1}
hooks: {probability: {type: "experiments.t:Confidence"}}
"""


def test_hooks_and_orchestrator_are_all_that_is_installed() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"][
        "find"
    ]
    installed = find_packages(str(ROOT), **found)
    assert {name.partition(".")[0] for name in installed} == {"hooks", "orchestrator"}
    assert {"hooks.logs.shared", "orchestrator.cli.starter", "orchestrator.report.views"} <= set(
        installed
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return study_in(tmp_path)


def study_in(tmp_path: Path) -> Path:
    """A folder with `experiments`, and with folders that have the names of Hookyard's and of
    installed packages."""
    folder = tmp_path / "study"
    for name in ("experiments", "hooks", "orchestrator", "torch", "ray", "tests"):
        (folder / name).mkdir(parents=True)
    for name in ("hooks", "torch", "ray"):
        (folder / name / "__init__.py").write_text(
            "raise RuntimeError('this is not what is meant')\n"
        )
    task = (ROOT / "orchestrator/cli/starter/starter.py").read_text()
    (folder / "experiments/t.py").write_text(task.replace("class StarterTask", "class T"))
    (folder / "experiments/t.yaml").write_text(EXPERIMENT)
    return folder


def hookyard(tmp_path: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command: only its two packages, and nothing else of the checkout, are on
    the import path."""
    installed = tmp_path / "installed"
    if not installed.exists():
        installed.mkdir()
        for name in ("hooks", "orchestrator"):
            (installed / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_user_s_folders_may_have_any_name(tmp_path: Path, study: Path) -> None:
    told = hookyard(tmp_path, study, "run", "experiments/t.yaml", "--local")
    assert told.returncode == 0, told.stderr


def test_error_explains_a_user_s_orchestrator_that_python_puts_first(tmp_path: Path) -> None:
    """As beside a script. Without an import of `hooks`, Python's own error names the file."""
    (tmp_path / "orchestrator").mkdir()
    (tmp_path / "orchestrator/__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    for code, says in {
        "import hooks": f"got {tmp_path / 'orchestrator'}; rename yours to my_orchestrator",
        "from orchestrator import open_run": f"cannot import name 'open_run' from 'orchestrator' ({tmp_path}",
    }.items():
        told = subprocess.run(
            [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True
        )
        assert says in told.stderr


def test_error_explains_a_user_folder_that_python_puts_first(tmp_path: Path, study: Path) -> None:
    """As `python -m orchestrator` does, and a script beside such a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(study), str(ROOT)])}
    told = subprocess.run(
        [sys.executable, "-P", "-c", "import orchestrator.task"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert f"got {study / 'hooks'}; rename yours to my_hooks" in told.stderr
