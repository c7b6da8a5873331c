"""Who may import whom: one direction, no cycles, and nothing heavy before it is needed."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hooks import HOOKS

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for package in ("hooks", "orchestrator", "experiments")
    for path in (ROOT / package).rglob("*.py")
)

LAYERS = tuple(
    tuple(name for name in re.findall(r"`([a-z_.]+)`", row))
    for row in re.findall(
        r"^\| *\d+ \|(.*?)\|", (ROOT / "docs/design.md").read_text(), re.MULTILINE
    )
)
"""The chart of docs/design.md, lowest first; a package may import its own layer and those below
it."""

CORE = {
    package: tuple(re.findall(r"`([a-z_.]+)`", mark))
    for row, mark in re.findall(
        r"^\| *\d+ \|([^|]*)\| *(\w[^|]*)\|", (ROOT / "docs/design.md").read_text(), re.MULTILINE
    )
    for package in re.findall(r"`([a-z_.]+)`", row)
}
"""The core's packages, each with the packages inside it that are built on the core."""

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


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def imported(module: str, types: bool = False) -> frozenset[str]:
    """Return what a module imports, in its functions too; with `types` also what is for type
    checkers alone."""
    return frozenset(imports(module, types))


def imports(module: str, types: bool) -> Iterator[str]:
    waiting: list[ast.AST] = [tree(module)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
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


@cache
def package_of(module: str) -> str:
    """Return the innermost package of the chart that holds a module, or else its top-level
    package."""
    around = [package for package in HEIGHTS if inside(module, (package,))]
    return max(around, key=len, default=module.split(".")[0])


def layer(module: str) -> int | None:
    return HEIGHTS.get(package_of(module))


def test_imports_point_down_the_chart() -> None:
    upward = [
        f"{module} imports {other}"
        for module in MODULES
        for other in imported(module)
        if (own := layer(module)) is not None
        and (others := layer(other)) is not None
        and others > own
    ]
    assert upward == []


def is_core(module: str) -> bool:
    package = package_of(module)
    return package in CORE and not inside(module, CORE[package])


def test_core_imports_nothing_that_is_built_on_it() -> None:
    own_packages = ("hooks", "orchestrator")
    imports_of_others = [
        f"{module} imports {other}"
        for module in MODULES
        if is_core(module) and module != "hooks"
        for other in imported(module)
        if inside(other, own_packages) and other != "orchestrator" and not is_core(other)
    ]
    assert imports_of_others == []
    assert is_core("hooks.training.ema")
    assert not is_core("hooks.self_supervised.byol")


def test_every_part_of_the_orchestrator_has_a_layer() -> None:
    parts = [module for module in MODULES if module.startswith("orchestrator.")]
    assert [module for module in parts if layer(module) is None] == []


def test_hooks_import_neither_ray_nor_the_orchestrator_nor_each_other() -> None:
    with_hook = {cls.__module__ for cls in HOOKS.values()}
    for module in (module for module in MODULES if package_of(module) == "hooks"):
        for other in imported(module):
            assert not inside(other, ("ray", "orchestrator", "experiments")), (
                f"{module} imports {other}"
            )
            assert module not in with_hook or other not in with_hook, (
                f"{module} imports the hook {other}"
            )


def test_one_hook_one_file() -> None:
    """In each folder of hooks/ but those that hold none; the parts of hooks lie in a folder in
    it."""
    files = [
        module_of(path)
        for path in (ROOT / "hooks").glob("*/*.py")
        if path.stem != "__init__" and path.parent.name not in {"metrics", "model", "distributed"}
    ]
    assert sorted(files) == sorted(cls.__module__ for cls in HOOKS.values())


def test_only_a_few_packages_import_ray() -> None:
    others = [module for module in MODULES if not inside(module, WITH_RAY)]
    assert [
        module for module in others if any(inside(other, ("ray",)) for other in imported(module))
    ] == []


def test_tasks_import_the_task_and_no_more_of_the_orchestrator() -> None:
    for module in (module for module in MODULES if inside(module, ("experiments",))):
        others = {other for other in imported(module) if inside(other, ("orchestrator",))}
        assert others <= {"orchestrator", "orchestrator.task"}, module


def subpackage_of(module: str) -> str:
    """Return the folder of a module inside a package, such as `orchestrator.loop.step`."""
    return ".".join(module.split(".")[:3]) if module.count(".") >= 3 else module


def test_imports_have_no_cycle() -> None:
    """Among files, annotations counted, among packages, and among the folders of a package. The
    public API names its types without importing them."""
    files = {
        module: {*imported(module, types=module != "orchestrator")} & {*MODULES}
        for module in MODULES
    }
    packages: dict[str, set[str]] = {}
    subpackages: dict[str, set[str]] = {}
    for module, others in files.items():
        packages.setdefault(package_of(module), set()).update(map(package_of, others))
        subpackages.setdefault(subpackage_of(module), set()).update(map(subpackage_of, others))

    for below in (files, packages, subpackages):
        while below:
            free = {one for one, others in below.items() if not (others - {one}) & set(below)}
            assert free, f"these import each other: {sorted(below)}"
            below = {one: others for one, others in below.items() if one not in free}


def test_files_to_begin_reading_exist() -> None:
    chart = (
        (ROOT / "docs/design.md")
        .read_text()
        .partition("Where to begin reading")[2]
        .partition("\n## ")[0]
    )
    places = re.findall(r"\| `([a-z_/]+\.py)` \|", chart)
    assert len(places) == 17
    assert [
        place
        for place in places
        if not any((ROOT / around / place).exists() for around in ("", "orchestrator"))
    ] == []


def test_no_module_is_called_utils() -> None:
    assert not [
        module
        for module in MODULES
        if {"utils", "util", "helpers", "common", "misc"} & set(module.split("."))
    ]


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import hooks", ("ray", "orchestrator", "pydantic", "pandas")),
        ("import orchestrator", ("ray", "torch", "pydantic", "pandas")),
        ("import orchestrator.cli", ("ray", "torch", "pydantic", "pandas", "pyarrow", "yaml")),
        ("import orchestrator.runs.overview, orchestrator.cli.show", ("ray", "torch", "pandas")),
        (
            "import orchestrator.experiment.load",
            ("ray", "pandas", "torch._dynamo", "hooks.self_supervised", "hooks.logs"),
        ),
        ("import orchestrator.runs.start, orchestrator.engines.gang", ("torch._dynamo",)),
        ("import orchestrator.sweeps.driver", ("torch._dynamo",)),
        (
            "import orchestrator.sweeps.results.result, orchestrator.tables.run_comparison, orchestrator.report.run,"
            " orchestrator.report.sweep, orchestrator.tables.summaries",
            ("ray", "torch", "duckdb"),
        ),
    ],
)
def test_import_loads_no_heavy_package(statement: str, without: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys\nprint(*(name for name in {without!r} if name in sys.modules))"
    came = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert came.stdout.split() == []
