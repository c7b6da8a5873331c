"""`hookyard init`: files to start from."""

import keyword
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import UsageError

_FOLDER = Path(__file__).with_name("starter")


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new module and its experiments.")
    ],
) -> None:
    """Write a task, a hook, an experiment and a sweep to start from: NAME.py, NAME.yaml,
    NAME_sweep.yaml.

    Example: hookyard init spirals
    """
    _check_module_name(name)
    files = _make_files(name)
    existing = [file for file in files if Path(file).exists()]
    if existing:
        raise UsageError(
            f"{', '.join(existing)} would be overwritten. Nothing was written; choose another name."
        )
    for file, text in files.items():
        Path(file).write_text(text)
        typer.echo(f"wrote {file}")
    typer.echo(f"Next:\n  hookyard run {name}.yaml\n  hookyard sweep {name}_sweep.yaml", err=True)


def _check_module_name(name: str) -> None:
    if keyword.iskeyword(name):
        raise UsageError(
            f"'{name}' cannot be a Python module, because it is a keyword; choose another name"
        )
    if not name.isidentifier():
        raise UsageError(
            f"'{name}' cannot be a Python module: use letters, digits and _, not starting with a digit"
        )
    if find_spec(name) is not None:
        raise UsageError(
            f"a module '{name}' exists and would be imported instead of {name}.py; choose another name"
        )
    if Path(name).exists():
        raise UsageError(
            f"cannot write {name}.py: the folder {name}/ has the same module name. Choose another name"
        )


def _make_files(name: str) -> Mapping[str, str]:
    """Return the text of each file by its name."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    names = {"starter": name, "Starter": class_name}
    files = {}
    for ending in (".py", ".yaml", "_sweep.yaml"):
        text = (_FOLDER / f"starter{ending}").read_text()
        files[f"{name}{ending}"] = re.sub("starter|Starter", lambda match: names[match[0]], text)
    return files
