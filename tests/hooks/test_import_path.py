import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

import hooks
from hooks.import_path import NoSuchModule, extend_import_path, import_callable, import_named

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
def test_name_that_begins_with_its_folder_is_found_from_the_parent(
    tmp_path: Path, package: bool
) -> None:
    """A file that names `studies.t:T` and lies in `studies` itself may be called from anywhere."""
    name = f"studies_{package}"
    file = written(tmp_path / name / "t.py", "from hooks import Hook")
    if package:
        written(tmp_path / name / "__init__.py")
    extend_import_path([tmp_path / name])
    assert where(import_named(f"{name}.t")) == str(file)
    with pytest.raises(NoSuchModule, match=f"no module '{name}.u' in {tmp_path / name}$"):
        import_named(f"{name}.u")


@pytest.mark.parametrize("name", ["hooks.mine", "torch.mine", "json.mine"])
def test_error_names_the_package_that_hides_the_users_folder(folder: Path, name: str) -> None:
    file = written(folder / f"{name.replace('.', '/')}.py")
    package = os.path.dirname(str(sys.modules[name.partition(".")[0]].__file__))
    with pytest.raises(
        NoSuchModule,
        match=rf"no module '{name}' in {package}.*\(it hides {file}; rename your folder\)",
    ):
        import_named(name)


@pytest.mark.parametrize("file", ["src/parcel_of_mine/__init__.py", "src/parcel_of_mine.py"])
def test_error_names_the_installation_that_a_src_layout_needs(folder: Path, file: str) -> None:
    written(folder / file)
    with pytest.raises(NoSuchModule) as raised:
        import_named("parcel_of_mine.tasks")
    says = (
        f"('parcel_of_mine' is in {folder / 'src'}, which is not installed;"
        f" run pip install -e . in {folder})"
    )
    assert str(raised.value).endswith(says)


def test_missing_module_error_lists_the_searched_folders(folder: Path) -> None:
    written(folder / "parcel/__init__.py")
    with pytest.raises(
        NoSuchModule, match=f"no module 'nosuchmodule' in .*{folder} or the installed packages$"
    ):
        import_named("nosuchmodule.deeper")
    with pytest.raises(NoSuchModule, match=f"no module 'parcel.inner' in {folder / 'parcel'}$"):
        import_named("parcel.inner")


def test_a_path_names_a_callable() -> None:
    assert import_callable("torch.nn:Identity", "teacher", nn.Module) is nn.Identity
    assert import_callable("experiments.mnist:load_mnist", "data", Mapping).__name__ == "load_mnist"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("math.sqrt", "teacher: must be module:callable, got 'math.sqrt'"),
        ("math:root", "has no attribute 'root'"),
        ("no_such_module:f", "no module 'no_such_module' in"),
        (":f", "must be module:callable, got ':f'"),
        ("math:pi", "must be module:callable, got 'math:pi'"),
        (
            "os:getcwd",
            "'os:getcwd' must be a subclass of torch.*Module, or a function annotated to return one",
        ),
        ("subprocess:Popen", "'subprocess:Popen' must be a subclass"),
        ("experiments.mnist:load_mnist", "must be a subclass"),
        ("ast:literal_eval", "must be a subclass"),
    ],
)
def test_missing_or_wrong_callable_error_names_the_field(path: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        import_callable(path, "teacher", nn.Module)
