"""Versions, code and command line of a run, without secrets."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.disk.metadata import Provenance
from orchestrator.storage import without_credentials

_PACKAGES = ("hookyard", "torch", "ray", "pandas", "pyarrow", "numpy", "pydantic", "tensorboard")
_ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RAY_ADDRESS",
    "NCCL_DEBUG",
    "PYTHONHASHSEED",
)
_INSTALLED = re.compile(r"([^-]+)-([^-]+)\.dist-info")
_DIFF_LIMIT = 200_000
_FILES_LIMIT = 1000


def collect_provenance(import_paths: Sequence[str]) -> Provenance:
    """Return command line, versions, environment variables, and the git state of the first import
    path, else of `.`."""
    versions = {name: find_version(name) for name in _PACKAGES}
    code = Path(import_paths[0]) if import_paths else Path(".")
    return Provenance(
        argv=[without_credentials(argument) for argument in sys.argv],
        python=platform.python_version(),
        platform=platform.platform(),
        versions={name: version for name, version in versions.items() if version},
        packages=_list_packages(),
        environment={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        git=_read_git_state(code),
    )


def _list_packages() -> dict[str, str]:
    """Return the version of every installed package by its name, as pip writes it, in the order of
    the names.

    Reads only the names of folders (`NAME-VERSION.dist-info`), because reading each package's
    metadata takes 0.1 s.
    """
    versions: dict[str, str] = {}
    # Python imports the first on its path.
    for folder in reversed(sys.path):
        versions.update(_list_packages_in(folder or "."))
    return dict(sorted(versions.items()))


def _list_packages_in(folder: str) -> dict[str, str]:
    """Return the versions of the packages that are installed in a folder; none if it cannot be
    listed."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(folder)
    matches = filter(None, map(_INSTALLED.fullmatch, names))
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in matches}


# A process imports a package once, and reading the metadata of eight takes 10 ms.
@cache
def find_version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


_APPLICABLE = (
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--binary",
    "--submodule=short",
)
"""Options of git for a diff that `git apply` takes; the user may have set another one, for people."""
_PREFIXES = ("--src-prefix=a/", "--dst-prefix=b/")
_DIRTY_SUBMODULE = re.compile(rb"^\+Subproject commit \w+-dirty$", re.MULTILINE)


def _read_git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and the changes to it; None without a commit that git can read, and an
    entry is None if git fails."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit.decode().strip(),
        **_read_changes(folder),
        **_list_untracked_files(folder),
    }


def _read_changes(folder: Path) -> dict[str, Any]:
    changes = _ask_git(folder, "diff", *_APPLICABLE, *_PREFIXES, "HEAD")
    if changes is None:
        return {"dirty": None, "diff": "", "diff_complete": False}
    in_submodules: bytes | None = b""
    if _DIRTY_SUBMODULE.search(changes):
        in_submodules = _read_submodule_changes(folder)
    read = changes + (in_submodules or b"")
    diff = read.decode(errors="replace")
    is_exact = in_submodules is not None and diff.encode() == read
    return {
        "dirty": bool(diff),
        "diff": diff[:_DIFF_LIMIT],
        "diff_complete": len(diff) <= _DIFF_LIMIT and is_exact,
    }


def _read_submodule_changes(folder: Path) -> bytes | None:
    """Return the changes within submodules, of which git's diff says only that there are some."""
    root = _ask_git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    prefixes = '--src-prefix="a/$displaypath/" --dst-prefix="b/$displaypath/"'
    command = f"git diff {' '.join(_APPLICABLE)} {prefixes} HEAD"
    top = Path(os.fsdecode(root.rstrip(b"\n")))
    return _ask_git(top, "submodule", "--quiet", "foreach", "--recursive", command)


def _list_untracked_files(folder: Path) -> dict[str, Any]:
    """Return the untracked files of the whole repository, relative to its root, and how many more
    there are."""
    listing = ("ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    # The files beside the code come first, in case there are more than the limit.
    answers = [_ask_git(folder, *listing, pathspec) for pathspec in (".", ":/")]
    found: dict[str, None] = {}
    for files in answers:
        if files is None:
            return {"untracked": None, "untracked_omitted": None}
        found |= dict.fromkeys(files.decode(errors="replace").split("\0"))
    names = list(filter(None, found))
    return {
        "untracked": names[:_FILES_LIMIT],
        "untracked_omitted": max(0, len(names) - _FILES_LIMIT),
    }


def _ask_git(folder: Path, *arguments: str) -> bytes | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
