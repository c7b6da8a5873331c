"""`hookyard validate CONFIG [key=value ...]`"""

from __future__ import annotations

from dataclasses import asdict

import typer

from orchestrator.cli.errors import WRONG_USAGE
from orchestrator.cli.options import AsJson, Config, Overrides
from orchestrator.cli.output import echo, print_json, talk
from orchestrator.errors import ConfigError


def validate(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Checks an experiment or a sweep without starting anything, and its data down to the first sample of each phase;
    exits with 2 and every problem where it is wrong."""
    from orchestrator.config.load import load_with_data

    try:
        with talk():
            experiment = load_with_data(config, overrides or [])
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [asdict(problem) for problem in error.problems]})
        raise typer.Exit(WRONG_USAGE) from None
    if as_json:
        print_json({"ok": True, "problems": []})
        return
    on = sum(1 for entry in experiment.hooks.values() if entry)
    echo(f"{config} is ok: {experiment.name}, {experiment.task}, {on} hooks", err=True)
