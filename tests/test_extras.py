"""What the pages and the experiments use is brought by the package itself, or by an extra that the page names; never by
`dev`."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: extra for name, extra in PROJECT["optional-dependencies"].items() if name != "dev"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").glob("*.ipynb"))]
OURS = {"hooks", "orchestrator", "experiments", "study", *sys.stdlib_module_names}
SETTINGS = {
    "mlflow": r"^\s*(hooks: \{)?mlflow:",
    "wandb": r"^\s*(hooks: \{)?wandb:",
    "optuna": r"search: optuna",
    "safetensors": r"from: .*\.safetensors",
    "pb2": r"(scheduler|type): pb2",
    "cluster": r"^(hookyard (submit|status|logs|stop)|ray) ",
}
"""How a file or a command asks for what an extra brings."""


def brought(requirements: list[str]) -> set[str]:
    """The distributions of some requirements, with those that they require in turn."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or (
            one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *one.extras))
        ):
            continue
        found.add(name)
        try:
            more = map(Requirement, requires(name) or [])
        except PackageNotFoundError:
            continue
        waiting += [
            other
            for other in more
            if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in ("", *one.extras))
        ]
    return found


CORE = brought(PROJECT["dependencies"])
BY_EXTRA = {name: brought(extra) for name, extra in EXTRAS.items()}


def modules(code: str) -> set[str]:
    """The top-level modules that some code imports, but for Python's and this project's."""
    nodes = list(ast.walk(ast.parse(dedent(code))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in named} - OURS


def blocks(page: Path, language: str) -> Iterator[str]:
    """The code on a page."""
    if page.suffix == ".md":
        yield from re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    elif language == "python":
        yield from (
            "".join(cell["source"]) for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "code"
        )


def extras_named(page: Path) -> set[str]:
    text = page.read_text().replace("\\n", "\n")
    return {
        name
        for name in EXTRAS
        if re.search(rf"hookyard\[[\w,-]*\b{name}\b|extra\s`{name}`|`{name}`\sextra|`{name}` \(", text)
    }


def not_brought(needed: set[str], extras: set[str]) -> set[str]:
    """The modules that neither the package nor the extras bring."""
    there = CORE.union(*(BY_EXTRA[extra] for extra in extras))
    by_module = packages_distributions()
    return {name for name in needed if not {canonicalize_name(one) for one in by_module.get(name, ())} & there}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_is_there(page: Path) -> None:
    needed = set().union(*map(modules, blocks(page, "python")))
    assert not_brought(needed, extras_named(page)) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_s_files_and_commands_ask_for_is_there(page: Path) -> None:
    written = "\n".join(blocks(page, r"\w*"))
    asked = {extra for extra, setting in SETTINGS.items() if re.search(setting, written, re.MULTILINE)}
    assert asked - extras_named(page) == set()


def test_the_experiments_here_need_the_demo_and_the_extras_that_they_name() -> None:
    for file in (ROOT / "experiments").rglob("*.py"):
        extras = extras_named(file)  # called as the modules that they bring, which need not be installed here
        needed = {name for name in modules(file.read_text()) if canonicalize_name(name) not in extras}
        assert not_brought(needed, {"demo", *extras}) == set()


def test_the_extras_are_those_of_the_page_on_commands() -> None:
    section = (ROOT / "docs" / "commands.md").read_text().split("\n## Extras\n")[1]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} == set(EXTRAS)


# The oldest versions that pyproject allows are those that `make test-oldest` runs

RANGED = {name: extra for name, extra in EXTRAS.items() if name != "gpu"}
PINS = dict(
    line.lower().split("==") for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if "==" in line
)


@pytest.mark.parametrize("text", sorted({*PROJECT["dependencies"], *chain(*RANGED.values())}))
def test_the_oldest_version_is_the_one_tested(text: str) -> None:
    asked = Requirement(text)
    (bound,) = [Version(one.version) for one in asked.specifier if one.operator == ">="]
    assert Version(PINS[asked.name]) == bound
