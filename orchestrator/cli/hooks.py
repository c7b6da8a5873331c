"""`hookyard hooks`: the hooks that an experiment can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.options import AsJson, complete_hooks
from orchestrator.cli.output import print_json, print_table


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
    from orchestrator.experiment.hook_reference import describe_hook
    from orchestrator.experiment.make_hooks import find_hook_class

    if name is not None:
        extend_import_path([Path.cwd()])
        entry = describe_hook(name, find_hook_class(name))
        if as_json:
            print_json(entry)
        else:
            _print_hook(entry)
        return

    entries = [describe_hook(key, cls) for key, cls in sorted(HOOKS.items())]
    if as_json:
        print_json(entries)
    else:
        _print_hooks(entries)


def _print_hooks(entries: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for entry in entries:
        summary, _, _ = entry["doc"].partition("\n\n")
        rows.append((entry["name"], entry["ranks"], " ".join(summary.split())))
    print_table(("hook", "ranks", "description"), rows)


def _print_hook(entry: Mapping[str, Any]) -> None:
    # The name of a hook of the user's own is its class.
    title = "  ".join(dict.fromkeys((entry["name"], entry["class"])))
    typer.echo(f"{title}\n\n{entry['doc']}\n")
    for label, value in _list_facts(entry).items():
        typer.echo(f"{label + ':':10}{value}")
    typer.echo("")

    if not entry["parameters"]:
        typer.echo("no parameters")
        return

    rows = []
    for field in entry["parameters"]:
        default = "(required)" if field["required"] else field["default"]
        rows.append((field["name"], field["type"], default, field["doc"]))
    print_table(("parameter", "type", "default", "description"), rows)


def _list_facts(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return when and where a hook runs, by label."""
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
    return facts
