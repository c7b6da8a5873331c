"""`hookyard validate CONFIG [key=value ...]`"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import WRONG_USAGE
from orchestrator.cli.options import AsJson, Config, Overrides
from orchestrator.cli.output import echo, print_json, talk
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from hooks import Interval
    from orchestrator.config.sections.experiment import Experiment


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
    for path, interval in _intervals(experiment):
        echo(f"  {path}: {interval}", err=True)


def _intervals(experiment: Experiment) -> Iterator[tuple[str, Interval]]:
    """Yield the path of each interval, and what it is with its unit."""
    from hooks import Interval
    from orchestrator.config.resolve import resolve

    yield "validate_every", experiment.validate_every
    for name, hook in resolve(experiment.source).hooks.items():
        for key, value in vars(hook).items():
            if isinstance(value, Interval) and key[0] != "_":
                yield f"hooks.{name}.{key}", value
