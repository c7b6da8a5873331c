"""Private names of Ray and torch stand in their fences and nowhere else."""

from __future__ import annotations

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
FENCES = {"hooks/private_torch.py", *(name for name in FILES if name.startswith("orchestrator/private_api/"))}

INTERNAL = re.compile(r"^(ray|torch)\b(\.\w+)*\.(_[A-Za-z]\w*|execution)\b|^ray\.tune\.progress_reporter\b")
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
"""Public in spite of their names, so that no field can be called so."""
OF_MODULES = {*vars(torch.nn.Module()), *vars(torch.nn.Module)}


def written(tree: ast.AST) -> set[str]:
    """Private names that a file gives to what is its own."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
OWN = set().union(*(written(tree) for name, tree in TREES.items() if name not in FENCES))


def foreign(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a file names what is private to a library, as far as its text tells: in imports, attributes and strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            yield from (
                (node.lineno, f"{module}{one.name}") for one in node.names if INTERNAL.match(f"{module}{one.name}")
            )
        elif isinstance(node, ast.Attribute) and PRIVATE.match(node.attr) and node.attr not in OF_NAMED_TUPLES:
            of_self = ast.unparse(node.value) in ("self", "cls")
            known = node.attr in OWN and (of_self or node.attr not in OF_MODULES)
            if not known and ast.unparse(node) not in OF_PYTHON:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            names = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
            yield from (
                (node.lineno, name) for name in names if PRIVATE.match(name) and name not in OWN | OF_NAMED_TUPLES
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (INTERNAL.match(node.value) or is_setting(node.value))
        ):
            yield node.lineno, node.value


def is_setting(text: str) -> bool:
    """Whether it names a variable of Ray's environment that is not documented."""
    return bool(SETTING.match(text)) and text not in DOCUMENTED


@pytest.mark.parametrize("name", sorted(FILES.keys() - FENCES))
def test_private_names_stand_in_the_fences(name: str) -> None:
    found = [f"{name}:{line}: {what}" for line, what in foreign(TREES[name])]
    assert not found, (
        f"{found} belongs into hooks/private_torch.py or orchestrator/private_api/, with a line in its test"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils._pytree import tree_map",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch._dynamo",
        "import ray.train.v2._internal.callbacks",
        "from ray.tune.execution.tune_controller import TuneController",
        "torch._foreach_norm(x)",
        "module._buffers",
        "getattr(scheduler, '_milestones_reached', ())",
        "class S(ASHAScheduler):\n    def f(self): self._trial_info",
        "'torch._dynamo' in sys.modules",
        "os.environ['RAY_raylet_start_wait_time_s'] = '120'",
    ],
)
def test_what_would_be_found(text: str) -> None:
    assert list(foreign(ast.parse(text)))


@pytest.mark.parametrize("fence", sorted(FENCES))
def test_every_name_in_a_fence_has_a_line_in_its_test(fence: str) -> None:
    # Not there everywhere: what is CUDA's alone, and an extra of the user's, which
    # tests/orchestrator/loop/data/test_share.py tries where it is.
    elsewhere = (
        "torch._C._cuda_attach_out_of_memory_observer",
        "datasets:IterableDataset._ex_iterable",
        "datasets:IterableDataset._distributed",
    )
    told = re.findall(r"\w+", " ".join([*TORCH, *RAY, *elsewhere]))
    own = written(TREES[fence])
    missing = [
        what
        for _, what in foreign(TREES[fence])
        if not SETTING.match(what) and not {what.rpartition(".")[2]} & {*own, *told}
    ]
    assert not missing
