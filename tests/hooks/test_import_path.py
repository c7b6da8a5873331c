from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

import hooks
from hooks.import_path import NoSuchModule, callable_at, extend_import_path, import_named

HOOKYARDS = os.path.dirname(hooks.__file__)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder on the import path."""
    extend_import_path([tmp_path])
    return tmp_path


def written(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def where(module: ModuleType) -> str | None:
    return module.__file__


def test_folders_are_appended_once_and_never_put_in_front(folder: Path) -> None:
    written(folder / "math.py", "raise RuntimeError('hides the installed module')")
    extend_import_path([folder])
    assert sys.path[-1] == str(folder)
    assert sys.path.count(str(folder)) == 1
    assert import_named("math") is math


@pytest.mark.parametrize("package", [True, False])
def test_user_folder_is_found_with_and_without_an_init_file(folder: Path, package: bool) -> None:
    file = written(folder / "my_studies/t.py")
    if package:
        written(folder / "my_studies/__init__.py")
    assert where(import_named("my_studies.t")) == str(file)


@pytest.mark.parametrize("package", [True, False])
def test_name_that_begins_with_its_folder_is_found_from_the_parent(tmp_path: Path, package: bool) -> None:
    """A file that names `studies.t:T` and lies in `studies` itself may be called from anywhere."""
    name = f"studies_{package}"
    file = written(tmp_path / name / "t.py", "from hooks import Hook")
    if package:
        written(tmp_path / name / "__init__.py")
    extend_import_path([tmp_path / name])
    assert where(import_named(f"{name}.t")) == str(file)
    with pytest.raises(NoSuchModule, match=f"no module '{name}.u' in {tmp_path / name}$"):
        import_named(f"{name}.u")


@pytest.mark.parametrize(
    "name", ["hooks.mine", "hooks.training.mine", "hooks.training.ema", "hooks", "orchestrator.mine"]
)
@pytest.mark.parametrize("package", [True, False])
def test_user_module_with_the_name_of_a_hookyard_package_is_refused(folder: Path, name: str, package: bool) -> None:
    """Also where Hookyard has such a module itself, which would be taken without a word."""
    place = folder.joinpath(*name.split("."))
    file = written(place / "__init__.py" if package else place.with_name(f"{place.name}.py"))
    top = name.partition(".")[0]
    called = f"my_{top}" if package or "." in name else f"my_{top}.py"
    with pytest.raises(NoSuchModule) as told:
        import_named(name)
    assert f"'{top}' is Hookyard's own package ({os.path.dirname(HOOKYARDS)}/{top}), which comes before {file}" in str(
        told.value
    )
    assert f"such as {called}, and write my_{name}" in str(told.value)


@pytest.mark.parametrize("name", ["torch.mine", "tests.mine", "json.mine"])
def test_user_folder_with_the_name_of_an_installed_package_is_refused(folder: Path, name: str) -> None:
    file, top = written(folder / f"{name.replace('.', '/')}.py"), name.partition(".")[0]
    with pytest.raises(NoSuchModule) as told:
        import_named(name)
    assert (
        f"'{top}' is a module from elsewhere ({os.path.dirname(str(sys.modules[top].__file__))}), which comes before"
        f" {file}" in str(told.value)
    )
    assert f"give {folder / top} another name, such as my_{top}, and write my_{name}" in str(told.value)


def test_missing_module_error_lists_the_searched_folders(folder: Path) -> None:
    written(folder / "pack/__init__.py")
    with pytest.raises(NoSuchModule, match=f"no module 'nosuchmodule' in .*{folder} or the installed packages$"):
        import_named("nosuchmodule.deeper")
    with pytest.raises(NoSuchModule, match=f"no module 'pack.inner' in {folder / 'pack'}$"):
        import_named("pack.inner")


def test_a_path_names_a_callable() -> None:
    assert callable_at("torch.nn:Identity", "teacher", nn.Module) is nn.Identity
    assert callable_at("experiments.mnist_ssl:labelled", "data", Mapping).__name__ == "labelled"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("math.sqrt", "teacher: 'math.sqrt' cannot be imported .* write module:callable"),
        ("math:root", "has no attribute 'root'"),
        ("no_such_module:f", "no module 'no_such_module' in"),
        (":f", "cannot be imported"),
        ("math:pi", "unknown return type of 'math:pi'"),
        ("os:getcwd", "'os:getcwd' is neither a subclass of torch.*Module nor a function annotated to return one"),
        ("subprocess:Popen", "'subprocess:Popen' is neither"),
        ("experiments.mnist_ssl:labelled", "neither a subclass"),
        ("ast:literal_eval", "neither a subclass"),
    ],
)
def test_missing_or_wrong_callable_error_names_the_field(path: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        callable_at(path, "teacher", nn.Module)
