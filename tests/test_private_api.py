"""Only hooks/private_torch.py and orchestrator/private_api/ use private names of Ray and torch."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.hooks.test_private_torch import NAMES as TORCH
from tests.orchestrator.private_api.test_names import NAMES as RAY

ROOT = Path(__file__).parents[1]
FILES = {
    str(path.relative_to(ROOT)): path
    for package in ("hooks", "orchestrator")
    for path in (ROOT / package).rglob("*.py")
}
FENCES = {
    "hooks/private_torch.py",
    *(name for name in FILES if name.startswith("orchestrator/private_api/")),
}

INTERNAL = re.compile(
    r"^(ray|torch)\b(\.\w+)*\.(_[A-Za-z]\w*|execution)\b|^ray\.tune\.progress_reporter\b"
)
PRIVATE = re.compile(r"^_[a-zA-Z]\w*$")
SETTING = re.compile(r"^(RAY|TUNE)_[A-Za-z_]+$")
DOCUMENTED = {
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "TUNE_DISABLE_SIGINT_HANDLER",
}
OF_PYTHON = {"os._exit", "sys._current_frames"}
OF_NAMED_TUPLES = {"_asdict", "_fields", "_replace"}
"""Public in spite of their names."""
OF_MODULES = {*vars(torch.nn.Module()), *vars(torch.nn.Module)}


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a file defines."""
    names = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    names |= {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and is_name(node.value, "self")
    }


def is_name(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
OWN = set().union(*(defined_names(tree) for name, tree in TREES.items() if name not in FENCES))


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a library's private names, in imports, attributes and
    strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (
                (node.lineno, f"{module}{one.name}")
                for one in node.names
                if INTERNAL.match(f"{module}{one.name}")
            )
        elif (
            isinstance(node, ast.Attribute)
            and PRIVATE.match(node.attr)
            and node.attr not in OF_NAMED_TUPLES
        ):
            known = node.attr in OWN and (
                is_name(node.value, "self", "cls") or node.attr not in OF_MODULES
            )
            if not known and ast.unparse(node) not in OF_PYTHON:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "hasattr",
            "setattr",
        ):
            names = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
            yield from (
                (node.lineno, name)
                for name in names
                if PRIVATE.match(name) and name not in OWN | OF_NAMED_TUPLES
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (INTERNAL.match(node.value) or is_setting(node.value))
        ):
            yield node.lineno, node.value


def is_setting(text: str) -> bool:
    """Return whether a text is an undocumented environment variable of Ray."""
    return bool(SETTING.match(text)) and text not in DOCUMENTED


def test_only_the_fences_use_private_names() -> None:
    uses = [
        f"{name}:{line}: {use}"
        for name in sorted(FILES.keys() - FENCES)
        for line, use in private_uses(TREES[name])
    ]
    assert not uses, (
        f"move {uses} to hooks/private_torch.py or orchestrator/private_api/, and list the names in a test"
    )


@pytest.mark.parametrize("fence", sorted(FENCES))
def test_tests_list_every_private_name_of_a_fence(fence: str) -> None:
    # tests/orchestrator/loop/data/test_share.py tries these if `datasets` is there.
    elsewhere = ("datasets:IterableDataset._ex_iterable", "datasets:IterableDataset._distributed")
    listed = re.findall(r"\w+", " ".join([*TORCH, *RAY, *elsewhere]))
    own = defined_names(TREES[fence])
    missing = [
        name
        for _, name in private_uses(TREES[fence])
        if not SETTING.match(name) and not {name.rpartition(".")[2]} & {*own, *listed}
    ]
    assert not missing
