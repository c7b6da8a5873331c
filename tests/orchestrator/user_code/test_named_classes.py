"""Imports: from a name in a config to a class."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from hooks import Hook
from hooks.import_path import extend_import_path
from orchestrator.errors import ConfigError
from orchestrator.task import Task
from orchestrator.user_code import named_classes
from orchestrator.user_code.named_classes import find_class, find_function
from tests.orchestrator.experiment.samples import HERE, Band, Line, Shadow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder at the end of the import path."""
    extend_import_path([tmp_path])
    return tmp_path


def refused(name: str, base: type = Hook, **kwargs: str) -> str:
    with pytest.raises(ConfigError) as caught:
        find_class(
            name, base, {"shadow": Shadow, "band": Band} if base is Hook else {}, "here", **kwargs
        )
    (problem,) = caught.value.problems
    assert problem.path == "here"
    return f"{problem.message} | {problem.suggestion}"


def test_names_and_import_paths() -> None:
    assert find_class("shadow", Hook, {"shadow": Shadow}) is Shadow
    assert find_class(f"{HERE}:Band", Hook, {"shadow": Shadow}) is Band
    assert find_class(f"{HERE}:Line", Task, {}) is Line


def test_broken_entry_point_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        named_classes,
        "_list_entry_points",
        lambda group: EntryPoints([EntryPoint("x", "no.where:X", group)]),
    )
    assert "entry point 'x' (no.where:X) cannot be loaded: ModuleNotFoundError" in refused(
        "x", group="g"
    )


def test_names_are_never_evaluated() -> None:
    for name in (
        "os:system('echo')",
        "__import__('os'):x",
        "os;sys:path",
        "tests.orchestrator.experiment.samples:Band()",
    ):
        assert "unknown hook" in refused(name)


def test_missing_module_is_reported_with_the_searched_folders(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").touch()
    assert f"{folder} or the installed packages |" in refused("nosuchmodule:X")
    assert str(folder) in refused("nosuchmodule.deeper:X")
    assert "or the installed packages (did you mean 'pack'?)" in refused("pac:X")
    assert f"no module 'pack.inner' in {folder / 'pack'} |" in refused("pack.inner:X")


def test_failing_module_is_reported_with_its_error(folder: Path) -> None:
    (folder / "failing_one.py").write_text("x = 1\nraise RuntimeError('out of luck')\n")
    (folder / "failing_two.py").write_text("import nosuchmodule\n")
    (folder / "failing_three.py").write_text("def broken(:\n")
    assert f"RuntimeError: out of luck ({folder / 'failing_one.py'}:2)" in refused("failing_one:X")
    assert f"No module named 'nosuchmodule' ({folder / 'failing_two.py'}:1)" in refused(
        "failing_two:X"
    )
    assert f"SyntaxError: invalid syntax ({folder / 'failing_three.py'}:1)" in refused(
        "failing_three:X"
    )


def test_missing_class_suggests_those_of_the_module() -> None:
    assert "has no 'Shadows' | did you mean 'Shadow'?" in refused(f"{HERE}:Shadows")
    assert "it has Shadow, Band, Bare" in refused(f"{HERE}:Qqqq")


def test_missing_name_is_reported_with_the_place_of_its_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "without_init").mkdir()
    place = f"({folder / 'without_init'}, a folder without __init__.py)"
    assert f"module 'without_init' {place} has no 'X'" in refused("without_init:X")
    assert "module 'sys' (built into Python) has no 'X'" in refused("sys:X")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert "module '__main__' (a notebook or a session) has no 'X'" in refused("__main__:X")


def refused_function(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        find_function(name, "here")
    (problem,) = caught.value.problems
    return f"{problem.message} | {problem.suggestion}"


def test_functions_are_found_as_classes_are(folder: Path) -> None:
    (folder / "made.py").write_text("count = 3\n\ndef make_points():\n    return []\n")
    assert find_function("made:make_points", "here")() == []
    assert "has no 'make_point' | did you mean 'make_points'?" in refused_function(
        "made:make_point"
    )
    assert "has no 'Qqqq' | it has make_points" in refused_function("made:Qqqq")
    assert "must be a function, got an int" in refused_function("made:count")
    assert refused_function("nosuchmod:x").startswith("no module 'nosuchmod' in ")
