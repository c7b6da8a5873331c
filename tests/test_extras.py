"""The package itself, or an extra that the page names, brings what pages and experiments use; never
`dev`."""

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
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
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.ipynb")),
]
OURS = {"hooks", "orchestrator", "experiments", "study", "sam", *sys.stdlib_module_names}
"""`sam` is a file of SAM's authors, which users copy."""
SETTINGS = {
    "mlflow": r"^\s*(hooks: \{)?mlflow:",
    "wandb": r"^\s*(hooks: \{)?wandb:",
    "optuna": r"search: optuna",
    "safetensors": r"from: .*\.safetensors",
    "serve": r"^(\$ )?hookyard serve ",
    "cluster": r"^(hookyard (submit|status|logs|stop)|ray) ",
}
"""How a file or a command asks for what an extra brings."""


@cache
def distributions(extra: str = "") -> frozenset[str]:
    """Return the distributions that an extra brings, or the package itself, with those that they
    require in turn."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in (EXTRAS[extra] if extra else PROJECT["dependencies"])]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in names or not applies(requirement, requirement.extras):
            continue
        names.add(name)
        with suppress(PackageNotFoundError):
            required = map(Requirement, requires(name) or [])
            waiting += [other for other in required if applies(other, requirement.extras)]
    return frozenset(names)


def applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


distributions_by_module = cache(packages_distributions)


def modules(code: str) -> set[str]:
    """Return the top-level modules that some code imports, but for Python's and this project's."""
    nodes = list(ast.walk(ast.parse(dedent(code))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in named} - OURS


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield the code on a page."""
    if page.suffix == ".md":
        yield from re.findall(
            rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        )
    elif language == "python":
        yield from (
            "".join(cell["source"])
            for cell in json.loads(page.read_text())["cells"]
            if cell["cell_type"] == "code"
        )


def extras_named(page: Path) -> set[str]:
    text = page.read_text().replace("\\n", "\n")
    return {
        name
        for name in EXTRAS
        if re.search(
            rf"hookyard\[[\w,-]*\b{name}\b|extra\s`{name}`|`{name}`\sextra|`{name}` \(", text
        )
    }


def not_brought(needed: set[str], extras: set[str]) -> set[str]:
    """Return the modules that neither the package nor the extras bring."""
    there = distributions().union(*map(distributions, extras))
    by_module = distributions_by_module()
    return {
        name
        for name in needed
        if not {canonicalize_name(one) for one in by_module.get(name, [name])} & there
    }


@cache
def modules_of_pages() -> frozenset[str]:
    """Return the modules that pages write, themselves or by `hookyard init`."""
    names: list[str] = []
    for page in PAGES:
        names += re.findall(r"^# (\w+)\.py$", page.read_text(), re.MULTILINE)
        names += re.findall(r"hookyard init (\w+)", page.read_text())
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_the_extras_of_its_code_files_and_commands(page: Path) -> None:
    named = extras_named(page)
    needed = set().union(*map(modules, blocks(page, "python"))) - modules_of_pages()
    assert not_brought(needed, named) == set()
    written = "\n".join(blocks(page, r"\w*"))
    assert {
        extra for extra, setting in SETTINGS.items() if re.search(setting, written, re.MULTILINE)
    } <= named


def test_experiments_need_only_the_demo_extra_and_those_that_they_name() -> None:
    for file in (ROOT / "experiments").rglob("*.py"):
        extras = extras_named(
            file
        )  # called as the modules that they bring, which need not be installed here
        needed = {
            name for name in modules(file.read_text()) if canonicalize_name(name) not in extras
        }
        assert not_brought(needed, {"demo", *extras}) == set()


def test_page_lists_every_extra() -> None:
    section = (ROOT / "docs" / "reference" / "extras.md").read_text()
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} == set(EXTRAS)


def test_all_is_every_other_extra() -> None:
    (requirement,) = map(Requirement, EXTRAS["all"])
    assert requirement.name == PROJECT["name"]
    assert requirement.extras == {*EXTRAS} - {"all"}


def test_package_declares_what_it_imports() -> None:
    declared = {
        canonicalize_name(Requirement(text).name)
        for text in chain(PROJECT["dependencies"], *RANGED.values())
    }
    declared |= {
        "ipython",  # only where a notebook has imported it
        "nvidia-ml-py",
        "pydantic-core",  # one version for each version of pydantic
    }
    by_module = distributions_by_module()
    undeclared = {
        (str(file.relative_to(ROOT)), module)
        for package in ("hooks", "orchestrator")
        for file in (ROOT / package).rglob("*.py")
        for module in modules(file.read_text())
        if not {canonicalize_name(name) for name in by_module.get(module, [module])} & declared
    }
    assert undeclared == set()


# The oldest versions that pyproject allows are those that `make test-oldest` runs

RANGED = {name: extra for name, extra in EXTRAS.items() if name not in ("all", "gpu")}
PINS = dict(
    line.lower().split("==")
    for line in (ROOT / "constraints-oldest.txt").read_text().splitlines()
    if "==" in line
)


@pytest.mark.parametrize("text", sorted({*PROJECT["dependencies"], *chain(*RANGED.values())}))
def test_oldest_allowed_version_is_the_one_tested(text: str) -> None:
    requirement = Requirement(text)
    (bound,) = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
    assert Version(PINS[requirement.name]) == bound
