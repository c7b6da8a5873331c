"""`hookyard init NAME`"""

from __future__ import annotations

import ast
import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import UsageError

_FOLDER = Path(__file__).with_name("starter")


def init(
    name: Annotated[str, typer.Argument(help="What the new files are called: NAME.py, NAME.yaml and NAME_sweep.yaml.")],
) -> None:
    """Writes a task, a hook, an experiment and a sweep to begin with, here; they run as they are."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"'{name}' cannot be the name of a Python module: letters, digits and _, and no digit first")
    if find_spec(name) is not None:
        raise UsageError(
            f"there is a module '{name}' already, which would be found instead of {name}.py; choose another name"
        )
    if Path(name).exists():
        raise UsageError(
            f"there is a folder {name}/ here, and of it and {name}.py Python would find one alone; choose another name"
        )
    _refuse_class(_class_name(name))
    files = {f"{name}{ending}": _starter(ending, name) for ending in (".py", ".yaml", "_sweep.yaml")}
    taken = [file for file in files if Path(file).exists()]
    if taken:
        raise UsageError(f"{', '.join(taken)} would be overwritten. Nothing was written; choose another name.")
    for file, text in files.items():
        Path(file).write_text(text)
        typer.echo(f"wrote {file}")
    typer.echo(f"Next: hookyard run {name}.yaml   and   hookyard sweep {name}_sweep.yaml", err=True)


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _refuse_class(name: str) -> None:
    """Raises UsageError where the task's class could not be called so: Python, or the starter itself, has the name."""
    tree = ast.parse((_FOLDER / "starter.py").read_text())
    imported = [
        alias.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name != "Starter"]
    if not name.isidentifier() or keyword.iskeyword(name) or name in (*imported, *defined):
        raise UsageError(
            f"the task would be a class '{name}', which cannot be or is another one in its file; choose another name"
        )


def _starter(ending: str, name: str) -> str:
    """A file of the starter under another name: its module, its class and its runs are called after that."""
    names = {"starter": name, "Starter": _class_name(name)}
    return re.sub("starter|Starter", lambda found: names[found[0]], (_FOLDER / f"starter{ending}").read_text())
