"""The wheel holds all that an installation needs, and its page on PyPI leads somewhere."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from shutil import copytree

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def run(*command: str | Path, folder: Path) -> str:
    """Run a command that sees nothing of this repository, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel, built of a copy of what the repository has under version control."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCE:
        (source / name).write_bytes((ROOT / name).read_bytes())
    for package in ("hooks", "orchestrator"):
        copytree(
            ROOT / package,
            source / package,
            ignore=lambda _, names: {"__pycache__"}.intersection(names),
        )
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    run(sys.executable, "-c", build, folder=source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel. What it depends on is that of the
    tests, without its Hookyard."""
    environment = tmp_path_factory.mktemp("installed")
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    return environment / "bin" / "python"


def test_installed_wheel_trains_and_reports(installed: Path, tmp_path: Path) -> None:
    hookyard = (installed, "-m", "orchestrator")
    origin = run(
        installed, "-c", "import orchestrator; print(orchestrator.__file__)", folder=tmp_path
    )
    assert Path(origin).is_relative_to(installed.parents[1])

    run(*hookyard, "init", "spirals", folder=tmp_path)
    run(*hookyard, "run", "spirals.yaml", "--local", "epochs=1", folder=tmp_path)
    run(*hookyard, "report", "runs/spirals", folder=tmp_path)
    assert (tmp_path / "runs" / "spirals" / "report.html").is_file()


def test_version_is_that_of_the_project(installed: Path, tmp_path: Path) -> None:
    printed = run(installed, "-m", "orchestrator", "--version", folder=tmp_path)
    assert printed == f"hookyard {PROJECT['version']}\n"


def test_wheel_has_the_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"hooks/py.typed", "orchestrator/py.typed"} <= set(names)


def test_links_of_the_description_lead_to_files_of_the_version(metadata: Message) -> None:
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []

    repository = PROJECT["urls"]["Repository"].removeprefix("https://github.com/")
    ours = rf"https://(?:github\.com/{repository}/blob|raw\.githubusercontent\.com/{repository})/"
    paths = [re.match(rf"{ours}v{PROJECT['version']}/([^#]+)", link) for link in links]
    files = [match[1] for match in paths if match]
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_metadata_says_where_to_ask(metadata: Message) -> None:
    urls = {entry.partition(",")[0] for entry in metadata.get_all("Project-URL", [])}
    assert urls == {"Repository", "Documentation", "Changelog", "Issues"}
    assert metadata["Description-Content-Type"] == "text/markdown"
