"""`hookyard hooks` and `schema`: what an experiment file can contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.options import AsJson, complete_hooks
from orchestrator.cli.output import print_json, print_table


def schema() -> None:
    """Print the JSON Schema of experiment files, for editors.

    Example: hookyard schema
    """
    from orchestrator.experiment.json_schema import make_experiment_schema

    print_json(make_experiment_schema())


def hooks(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A hook, or module:Class.", autocompletion=complete_hooks
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the hooks, or show one with its parameters.

    Example: hookyard hooks ema
    """
    from hooks import HOOKS
    from hooks.import_path import extend_import_path
    from orchestrator.experiment.components import find_hook_class
    from orchestrator.experiment.hook_reference import describe_hook

    if name is None:
        entries = [describe_hook(key, cls) for key, cls in sorted(HOOKS.items())]
        return print_json(entries) if as_json else _print_hooks(entries)

    extend_import_path([Path.cwd()])
    entry = describe_hook(name, find_hook_class(name))
    return print_json(entry) if as_json else _print_hook(entry)


def _print_hooks(entries: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for entry in entries:
        summary, _, _ = entry["doc"].partition("\n\n")
        rows.append((entry["name"], entry["ranks"], " ".join(summary.split())))
    print_table(("hook", "ranks", "description"), rows)


def _print_hook(entry: Mapping[str, Any]) -> None:
    # A hook of the user's own is named by its class.
    title = "  ".join(dict.fromkeys((entry["name"], entry["class"])))
    typer.echo(f"{title}\n\n{entry['doc']}\n")
    traits = [name.replace("_", " ") for name in ("collective", "best_effort") if entry[name]]
    facts = {
        "ranks": ", ".join([entry["ranks"], *traits]),
        "priority": entry["priority"],
        "events": ", ".join(entry["events"]),
        "source": entry["source"],
    }
    if entry["waits_for_device"]:
        facts["waits"] = f"for the device in {', '.join(entry['waits_for_device'])}"
    if entry["mutable"]:
        facts["mutable"] = f"{', '.join(entry['mutable'])} (may change during a run)"
    for key, value in facts.items():
        typer.echo(f"{key + ':':10}{value}")
    typer.echo("")
    rows = [
        (
            field["name"],
            field["type"],
            "(required)" if field["required"] else field["default"],
            field["doc"],
        )
        for field in entry["parameters"]
    ]
    if rows:
        print_table(("parameter", "type", "default", "description"), rows)
    else:
        typer.echo("no parameters")
