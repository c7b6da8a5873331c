"""`hookyard validate`: whether an experiment file is valid, and how to check the rest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.errors import WRONG_USAGE
from orchestrator.cli.options import AsJson, Config, Overrides
from orchestrator.cli.output import echo, print_json, stdout_to_stderr
from orchestrator.errors import ConfigError
from orchestrator.units import format_count

if TYPE_CHECKING:
    from hooks import Interval
    from orchestrator.experiment.checked_experiment import CheckedExperiment


def validate(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check an experiment file and the first sample of each dataset, without training.

    Prints every problem, and exits with 2 if there is one.

    Example: hookyard validate spirals.yaml
    """
    try:
        experiment = _load_checked(config, overrides or [])
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": error.problems})
        raise typer.Exit(WRONG_USAGE) from None
    if as_json:
        print_json({"ok": True, "problems": []})
        return

    hooks = format_count(sum(1 for entry in experiment.hooks.values() if entry), "hook")
    echo(f"{config} is valid: {experiment.name}, {experiment.task}, {hooks}", err=True)
    for path, interval in _list_written_intervals(experiment):
        echo(f"  {path}: {interval}", err=True)
    _print_next_steps(config, overrides or [], experiment)


def _load_checked(config: Path, overrides: Sequence[str]) -> CheckedExperiment:
    from orchestrator.experiment.load import load_checked
    from orchestrator.runs.launch_checks import check_surroundings
    from orchestrator.sweeps.requirements import check_search

    with stdout_to_stderr():
        experiment = load_checked(config, overrides)
    check_surroundings(experiment)
    if experiment.sweep:
        check_search(experiment.sweep)
    return experiment


def _list_written_intervals(experiment: CheckedExperiment) -> Iterator[tuple[str, Interval]]:
    """Yield path and value of each interval in the file, to show its unit."""
    from hooks import Interval

    written, _ = experiment.source.merge()
    if "validate_every" in written:
        yield "validate_every", experiment.validate_every

    written_hooks = written.get("hooks") or {}
    for name, hook in experiment.get_resolved().hooks.items():
        fields = written_hooks.get(name)
        # A hook may be written as true or as its type instead of its fields.
        if not isinstance(fields, Mapping):
            continue
        for key in fields:
            value = getattr(hook, key, None)
            if isinstance(value, Interval):
                yield f"hooks.{name}.{key}", value


def _print_next_steps(
    config: Path, overrides: Sequence[str], experiment: CheckedExperiment
) -> None:
    """Print the commands that check what is not checked here. A custom loop gets none, because it
    may not read `steps`."""
    from orchestrator.task import has_custom_loop

    if has_custom_loop(type(experiment.get_resolved().task)):
        return
    verify = shlex.join(["hookyard", "verify", str(config), *overrides])
    echo(f"To check that a resume continues bit for bit: {verify}", err=True)

    changes = [*overrides]
    if experiment.sweep:
        changes.append("sweep=null")
    if experiment.epochs:
        changes.append("epochs=null")
    changes.append("steps=1")
    command = shlex.join(
        ["hookyard", "run", str(config), "--local", "--name", "one_step", *changes]
    )
    echo(f"Not checked: the model, the loss and the metrics. To run one step: {command}", err=True)
