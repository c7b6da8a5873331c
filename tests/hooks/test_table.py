"""The table of the hooks that ship."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hooks
from hooks import HOOKS, Hook

INIT = Path(hooks.__file__)


def test_each_hook_is_found_by_its_name_and_by_its_class() -> None:
    for name in HOOKS:
        cls = HOOKS[name]
        assert issubclass(cls, Hook)
        assert cls.__module__.endswith(f".{name}")
        assert HOOKS.name_of(cls) == name
        assert getattr(hooks, cls.__name__) is cls


def test_another_class_has_no_name_even_if_it_is_called_like_a_hook() -> None:
    own = type("Checkpoint", (Hook,), {})

    assert HOOKS.name_of(own) is None
    assert HOOKS.name_of(Hook) is None


def test_a_question_for_a_name_imports_no_hook() -> None:
    code = "import sys; from hooks import HOOKS; print('wandb' in HOOKS, 'hooks.logs.wandb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_unknown_hook_is_a_missing_key() -> None:
    assert HOOKS.get("checkpoints") is None
    with pytest.raises(KeyError):
        HOOKS["checkpoints"]


def test_type_checkers_see_the_names_that_the_table_gives() -> None:
    block = next(node for node in ast.parse(INIT.read_text()).body if isinstance(node, ast.If))
    imported = {
        (statement.module, alias.name)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    assert imported == {(module, name) for name, module in hooks._MODULE_OF.items()}
    assert hooks.__all__ == sorted([*hooks._MODULE_OF, "HOOKS"])


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'hooks' has no attribute 'Chekpoint'"):
        hooks.Chekpoint  # noqa: B018
