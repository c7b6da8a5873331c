"""Who may import whom: one direction, no cycles, and nothing heavy before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks import HOOKS

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("hooks", "orchestrator", "experiments") for path in (ROOT / package).rglob("*.py"))

LAYERS = tuple(
    tuple(name for name in re.findall(r"`([a-z_.]+)`", row))
    for row in re.findall(r"^\| *\d+ \|(.*?)\|", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
)
"""The chart of docs/design.md, lowest first; a package may import its own layer and those below it."""

WITH_RAY = (
    "orchestrator.engines",
    "orchestrator.runs",
    "orchestrator.sweeps",
    "orchestrator.cluster",
    "orchestrator.private_api",
    "experiments.iris_parquet",
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path, types: bool = False) -> Iterator[str]:
    """What a file imports, in its functions too; with `types` also what is for type checkers alone."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


HEIGHTS = {package: height for height, packages in enumerate(LAYERS) for package in packages}


def package_of(module: str) -> str:
    """The package of the chart that a module is in, the innermost where one lies in another; else the outermost there
    is."""
    around = [package for package in HEIGHTS if inside(module, (package,))]
    return max(around, key=len, default=module.split(".")[0])


def layer(module: str) -> int | None:
    return HEIGHTS.get(package_of(module))


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    own = layer(module)
    for other in imported(MODULES[module]):
        other_layer = layer(other)
        if own is not None and other_layer is not None:
            assert other_layer <= own, f"{module} imports {other}, which is above it"


@pytest.mark.parametrize(
    "module", [module for module in MODULES if inside(module, ("orchestrator",)) and module != "orchestrator"]
)
def test_every_part_of_the_orchestrator_has_a_layer(module: str) -> None:
    assert layer(module) is not None


@pytest.mark.parametrize("module", [module for module in MODULES if package_of(module) == "hooks"])
def test_hooks_know_neither_ray_nor_the_orchestrator_nor_each_other(module: str) -> None:
    for other in imported(MODULES[module]):
        assert not inside(other, ("ray", "orchestrator", "experiments")), f"{module} imports {other}"
        if is_hook(module):
            assert not is_hook(other), f"{module} imports the hook {other}"


def is_hook(module: str) -> bool:
    """Whether a module defines a hook."""
    if not inside(module, ("hooks",)) or module == "hooks.hook" or module not in MODULES:
        return False
    classes = [node for node in ast.parse(MODULES[module].read_text()).body if isinstance(node, ast.ClassDef)]
    return any(isinstance(base, ast.Name) and base.id == "Hook" for node in classes for base in node.bases)


def test_one_hook_one_file() -> None:
    assert sorted(filter(is_hook, MODULES)) == sorted(cls.__module__ for cls in HOOKS.values())


@pytest.mark.parametrize("module", MODULES)
def test_ray_is_imported_in_few_places(module: str) -> None:
    if not inside(module, WITH_RAY):
        assert not [other for other in imported(MODULES[module]) if inside(other, ("ray",))]


def test_tasks_import_the_task_and_no_more_of_the_orchestrator() -> None:
    for module in (module for module in MODULES if inside(module, ("experiments",))):
        others = {other for other in imported(MODULES[module]) if inside(other, ("orchestrator",))}
        assert others <= {"orchestrator", "orchestrator.task"}, module


def test_there_is_no_cycle() -> None:
    """Among files, annotations counted, and among packages. The public API names its types without importing them."""
    files = {module: {*imported(path, types=module != "orchestrator")} & {*MODULES} for module, path in MODULES.items()}
    packages: dict[str, set[str]] = {}
    for module, others in files.items():
        packages.setdefault(package_of(module), set()).update(map(package_of, others))
    for below in (files, packages):
        while below:
            free = {one for one, others in below.items() if not (others - {one}) & set(below)}
            assert free, f"these import each other: {sorted(below)}"
            below = {one: others for one, others in below.items() if one not in free}


def test_the_places_to_begin_reading_are_there() -> None:
    chart = (ROOT / "docs/design.md").read_text().partition("Where to begin reading")[2].partition("\n## ")[0]
    places = re.findall(r"\| `([a-z_/]+\.py)` \|", chart)
    assert len(places) == 11
    assert [
        place for place in places if not any((ROOT / around / place).exists() for around in ("", "orchestrator"))
    ] == []


def test_no_module_is_called_utils() -> None:
    assert not [module for module in MODULES if {"utils", "util", "helpers", "common", "misc"} & set(module.split("."))]


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import hooks", ("ray", "orchestrator", "pydantic", "pandas")),
        ("import orchestrator", ("ray", "torch", "pydantic", "pandas")),
        ("import orchestrator.cli", ("ray", "torch", "pydantic", "pandas", "pyarrow", "yaml")),
        ("import orchestrator.runs.best, orchestrator.cli.show", ("ray", "torch", "pandas")),
        ("import orchestrator.config.load", ("ray", "pandas", "torch._dynamo")),
        ("import orchestrator.sweeps.results.result", ("ray", "torch", "duckdb")),
        (
            "import orchestrator.stats.aggregate.compare, orchestrator.report.run, orchestrator.report.sweep",
            ("ray", "torch", "duckdb"),
        ),
        ("import orchestrator.stats.read.tables, orchestrator.stats.aggregate.summaries", ("ray", "torch", "duckdb")),
    ],
)
def test_nothing_heavy_comes_along(statement: str, without: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys\nprint(*(name for name in {without!r} if name in sys.modules))"
    came = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert came.stdout.split() == []
