"""`hookyard validate CONFIG [key=value ...]`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.errors import WRONG_USAGE
from orchestrator.cli.output import print_json
from orchestrator.errors import ConfigError


def validate(
    config: Annotated[Path, typer.Argument(help="An experiment or sweep file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Laid over the file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the problems as JSON.")] = False,
) -> None:
    """Checks an experiment or a sweep without starting anything; exits with 2 and every problem where it is wrong."""
    from orchestrator.config.load import load_experiment

    try:
        experiment = load_experiment(config, overrides or [])
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        raise typer.Exit(WRONG_USAGE) from None
    if as_json:
        print_json({"ok": True, "problems": []})
        return
    on = sum(1 for entry in experiment.hooks.values() if entry)
    typer.echo(f"{config} is ok: {experiment.name}, {experiment.task}, {on} hooks", err=True)
