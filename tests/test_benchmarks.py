"""Benchmarks are called by hand; here it is seen that what they take from the project is there.

They are imported where they are tried: they set the number of threads for their whole process, and tests of Ray hand
that on.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_names_that_benchmarks_import_exist(script: Path) -> None:
    taken = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in taken:
        if str(node.module).partition(".")[0] in ("hooks", "orchestrator", "experiments", "tests"):
            module = import_module(str(node.module))
            names = [alias.name for alias in node.names]
            assert [
                name for name in names if not hasattr(module, name) and find_spec(f"{node.module}.{name}") is None
            ] == []


def test_the_list_of_wheels_is_what_is_imported() -> None:
    from benchmarks.gpu import wheels

    assert wheels.problem() is None
