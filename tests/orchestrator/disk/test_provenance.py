import json
import re
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest

from orchestrator.disk.provenance import collect_provenance


def collect(import_paths: list[str]) -> dict[str, Any]:
    return vars(collect_provenance(import_paths))


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "task.py").write_text("width = 1\n")
    git(tmp_path, "add", "task.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_versions_and_command_line(tmp_path: Path) -> None:
    about = collect([str(tmp_path)])
    assert about["argv"] == sys.argv
    assert about["versions"]["torch"] == version("torch")
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))


def test_all_installed_packages_are_recorded_as_importlib_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (
        ("a", "Some_Package-1.0+cu1"),
        ("b", "some.package-2.0"),
        ("b", "other-3"),
        ("b", "no-4.egg"),
    ):
        info = tmp_path / folder / f"{name}.dist-info"
        info.mkdir(parents=True)
        package, version_ = name.split("-")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version_}\n"
        )
    monkeypatch.setattr(
        sys,
        "path",
        [str(tmp_path / "missing"), str(tmp_path / "a"), str(tmp_path / "b"), *sys.path],
    )
    about = collect([str(tmp_path)])["packages"]
    expected: dict[str, str] = {}
    for found in distributions():
        expected.setdefault(re.sub(r"[-_.]+", "-", found.name).lower(), found.version)
    assert about == dict(sorted(expected.items()))
    assert (about["some-package"], about["other"]) == ("1.0+cu1", "3")


def test_git_state_is_recorded(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    assert collect([str(repository)])["git"] == {
        "commit": commit,
        "dirty": False,
        "diff": "",
        "diff_complete": True,
        "untracked": [],
        "untracked_omitted": 0,
    }
    (repository / "task.py").write_text("width = 2\n")
    about = collect([str(repository)])["git"]
    assert about["dirty"]
    assert about["diff_complete"]
    assert "-width = 1\n+width = 2\n" in about["diff"]


def test_untracked_files_are_listed(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.pt\n")
    for name in ("new_task.py", "weights.pt"):
        (repository / name).touch()
    assert collect([str(repository)])["git"]["untracked"] == [
        ".gitignore",
        "new_task.py",
    ]


def test_untracked_files_beyond_the_limit_are_counted(repository: Path) -> None:
    for number in range(1003):
        (repository / f"{number:04}.txt").touch()
    about = collect([str(repository)])["git"]
    assert about["untracked"] == [f"{number:04}.txt" for number in range(1000)]
    assert about["untracked_omitted"] == 3


def test_recorded_diff_has_the_changes_within_submodules(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = tmp_path_factory.mktemp("library")
    git(library, "init", "-q")
    (library / "model.py").write_text("depth = 1\n")
    (library / "weights.npy").write_bytes(bytes(range(256)))
    git(library, "add", ".")
    git(library, "commit", "-qm", "first")
    add = ("submodule", "add", "-q", str(library), "my libs/one")
    git(repository, "-c", "protocol.file.allow=always", *add)
    git(repository, "commit", "-qm", "library")
    submodule = repository / "my libs/one"
    git(submodule, "config", "diff.external", "/bin/false")
    assert not collect([str(repository)])["git"]["dirty"]

    changed = {"model.py": b"depth = 2\n", "weights.npy": bytes(range(255, -1, -1))}
    for name, content in changed.items():
        (submodule / name).write_bytes(content)
    (repository / "task.py").write_text("width = 2\n")
    (repository / "package").mkdir()
    about = collect([str(repository / "package")])["git"]
    assert about["diff_complete"]

    git(submodule, "checkout", ".")
    git(repository, "checkout", "task.py")
    patch = repository / ".git/recorded.patch"
    patch.write_bytes(about["diff"].encode())
    git(repository, "apply", str(patch))
    assert {name: (submodule / name).read_bytes() for name in changed} == changed
    assert (repository / "task.py").read_text() == "width = 2\n"


def test_diff_of_a_file_that_is_not_utf8_is_recorded_with_a_replacement(repository: Path) -> None:
    (repository / "task.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    about = collect([str(repository)])["git"]
    assert "-width = 1\n+# caf\N{REPLACEMENT CHARACTER}\n" in about["diff"]
    assert about["dirty"]
    assert not about["diff_complete"], "it cannot be applied"


def test_recorded_diff_can_be_applied_whatever_the_settings_of_git(repository: Path) -> None:
    changed = b"width = 2\r\nheight = 3\r\n"
    (repository / "task.py").write_bytes(changed)
    for name, value in (
        ("color.diff", "always"),
        ("diff.external", "/bin/false"),
        ("core.autocrlf", "false"),
        ("diff.python.textconv", "/bin/false"),
        ("diff.noprefix", "true"),
        ("diff.relative", "true"),
    ):
        git(repository, "config", name, value)
    (repository / ".git/info/attributes").write_text("*.py diff=python\n")
    (repository / "package").mkdir()
    about = collect([str(repository / "package")])["git"]
    assert about["dirty"]
    assert about["diff_complete"]

    git(repository, "checkout", "task.py")
    patch = repository / ".git/recorded.patch"
    patch.write_bytes(about["diff"].encode())
    git(repository, "apply", str(patch))
    assert (repository / "task.py").read_bytes() == changed


def test_recorded_diff_has_the_content_of_binary_files(repository: Path) -> None:
    weights = repository / "weights.npy"
    weights.write_bytes(bytes(range(256)))
    git(repository, "add", "weights.npy")
    git(repository, "commit", "-qm", "weights")
    weights.write_bytes(bytes(range(255, -1, -1)))
    about = collect([str(repository)])["git"]
    assert about["diff_complete"]

    git(repository, "checkout", "weights.npy")
    patch = repository / ".git/recorded.patch"
    patch.write_bytes(about["diff"].encode())
    git(repository, "apply", str(patch))
    assert weights.read_bytes() == bytes(range(255, -1, -1))


def test_changes_are_unknown_if_git_fails(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = subprocess.run

    def fail(command: list[str], **settings: object) -> object:
        if "rev-parse" in command:
            return call(command, **settings)  # type: ignore[call-overload]
        raise subprocess.TimeoutExpired(command, 10)

    monkeypatch.setattr(subprocess, "run", fail)
    about = collect([str(repository)])["git"]
    assert len(about["commit"]) == 40
    unknown = {
        "dirty": None,
        "diff": "",
        "diff_complete": False,
        "untracked": None,
        "untracked_omitted": None,
    }
    assert about == {"commit": about["commit"], **unknown}


def test_untracked_files_of_the_whole_repository_are_listed_beginning_with_those_of_the_code(
    repository: Path,
) -> None:
    (repository / "package").mkdir()
    for name in ("package/model.py", "helper.py", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n.py"):
        (repository / name).touch()
    assert collect([str(repository / "package")])["git"]["untracked"] == [
        "package/model.py",
        "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n.py",
        "helper.py",
    ]


def test_code_that_is_not_in_git_is_no_error(tmp_path: Path) -> None:
    assert collect([str(tmp_path)])["git"] is None
    assert collect([str(tmp_path / "missing")])["git"] is None


def test_only_listed_environment_variables_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    about = collect([str(tmp_path)])
    assert about["environment"]["OMP_NUM_THREADS"] == "4"
    assert "hunter2" not in json.dumps(about)
