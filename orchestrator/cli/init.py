"""`hookyard init`"""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import UsageError

_FOLDER = Path(__file__).with_name("starter")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new module and its experiments.")],
) -> None:
    """Write a task, a hook, an experiment and a sweep to start from: NAME.py, NAME.yaml, NAME_sweep.yaml."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"'{name}' cannot be a Python module: use letters, digits and _, not starting with a digit")
    if find_spec(name) is not None:
        raise UsageError(f"a module '{name}' exists and would be imported instead of {name}.py; choose another name")
    if Path(name).exists():
        raise UsageError(f"the folder {name}/ would hide {name}.py from Python; choose another name")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    names = {"starter": name, "Starter": class_name}
    files = {
        f"{name}{ending}": re.sub(
            "starter|Starter", lambda match: names[match[0]], (_FOLDER / f"starter{ending}").read_text()
        )
        for ending in (".py", ".yaml", "_sweep.yaml")
    }
    existing = [file for file in files if Path(file).exists()]
    if existing:
        raise UsageError(f"{', '.join(existing)} would be overwritten. Nothing was written; choose another name.")
    for file, text in files.items():
        Path(file).write_text(text)
        typer.echo(f"wrote {file}")
    typer.echo(f"Next:\n  hookyard run {name}.yaml\n  hookyard sweep {name}_sweep.yaml", err=True)
