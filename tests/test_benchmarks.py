"""Benchmarks are called by hand; here it is seen that what they take from the project is there.

They are imported where they are tried: they set the number of threads for their whole process, and tests of Ray hand
that on.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_benchmark_imports_of_the_project_is_there(script: Path) -> None:
    taken = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in taken:
        if str(node.module).partition(".")[0] in ("hooks", "orchestrator", "experiments", "tests"):
            module = import_module(str(node.module))
            names = [alias.name for alias in node.names]
            assert [
                name for name in names if not hasattr(module, name) and find_spec(f"{node.module}.{name}") is None
            ] == []


def test_the_resnet_is_of_the_size_that_is_known() -> None:
    from benchmarks.gpu import models

    assert sum(parameter.numel() for parameter in models.resnet().parameters()) == 25_557_032  # torchvision's


def test_a_part_that_crashes_or_hangs_costs_its_own_rows() -> None:
    from benchmarks.gpu.__main__ import rows_of

    def rows(script: str, limit_s: float = 60.0) -> list[str]:
        return list(rows_of("loading", [sys.executable, "-c", script], limit_s))

    first = "print('noise'); print('| a | 1 | |', flush=True); "
    assert rows(first) == ["| a | 1 | |"]
    assert rows(first + "raise SystemExit(3)") == [
        "| a | 1 | |",
        "| loading | failed with status 3; its stderr says why | |",
    ]
    assert rows("while True: pass", 0.1) == ["| loading | took more than 0.1 s | |"]


def test_the_list_of_wheels_is_what_is_imported() -> None:
    from benchmarks.gpu import wheels

    assert wheels.problem() is None
