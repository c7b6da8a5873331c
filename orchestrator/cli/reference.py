"""`hookyard init`, `validate`, `hooks` and `schema`: experiment files and their possible contents."""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from orchestrator.cli.errors import WRONG_USAGE
from orchestrator.cli.options import AsJson, Config, Overrides, complete_hooks
from orchestrator.cli.output import echo, print_json, print_table, stdout_to_stderr
from orchestrator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hooks import Hook

_FOLDER = Path(__file__).with_name("starter")
_PLAIN_TYPES = (bool, int, float, str, list, dict, NoneType)


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new module and its experiments.")
    ],
) -> None:
    """Write a task, a hook, an experiment and a sweep to start from: NAME.py, NAME.yaml,
    NAME_sweep.yaml.

    Example: hookyard init spirals
    """
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
    class_name = "".join(part.capitalize() for part in name.split("_"))
    names = {"starter": name, "Starter": class_name}
    files = {
        f"{name}{ending}": re.sub(
            "starter|Starter",
            lambda match: names[match[0]],
            (_FOLDER / f"starter{ending}").read_text(),
        )
        for ending in (".py", ".yaml", "_sweep.yaml")
    }
    existing = [file for file in files if Path(file).exists()]
    if existing:
        raise UsageError(
            f"{', '.join(existing)} would be overwritten. Nothing was written; choose another name."
        )
    for file, text in files.items():
        Path(file).write_text(text)
        typer.echo(f"wrote {file}")
    typer.echo(f"Next:\n  hookyard run {name}.yaml\n  hookyard sweep {name}_sweep.yaml", err=True)


def validate(config: Config, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check an experiment file and the first sample of each dataset, without training.

    Prints every problem, and exits with 2 if there is one.

    Example: hookyard validate spirals.yaml
    """
    from hooks import Interval
    from orchestrator.experiment.load import load_checked
    from orchestrator.experiment.resolve import get_resolved
    from orchestrator.runs.launch import check_surroundings
    from orchestrator.sweeps.requirements import check_search
    from orchestrator.task import has_custom_loop

    try:
        with stdout_to_stderr():
            experiment = load_checked(config, overrides or [])
        check_surroundings(experiment)
        if experiment.sweep:
            check_search(experiment.sweep)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": error.problems})
        raise typer.Exit(WRONG_USAGE) from None
    if as_json:
        print_json({"ok": True, "problems": []})
        return
    count = sum(1 for entry in experiment.hooks.values() if entry)
    echo(f"{config} is valid: {experiment.name}, {experiment.task}, {count} hooks", err=True)
    resolved = get_resolved(experiment)
    written, _ = experiment.source.merged()
    if "validate_every" in written:
        echo(f"  validate_every: {experiment.validate_every}", err=True)
    hooks = written.get("hooks") or {}
    for name, hook in resolved.hooks.items():
        fields = hooks.get(name)
        for key in fields if isinstance(fields, Mapping) else ():
            value = getattr(hook, key, None)
            if isinstance(value, Interval):
                echo(f"  hooks.{name}.{key}: {value}", err=True)
    if not has_custom_loop(type(resolved.task)):  # such a task may not read `steps`
        length = ["epochs=null", "steps=1"] if experiment.epochs else ["steps=1"]
        changes = [*(overrides or []), *(["sweep=null"] if experiment.sweep else []), *length]
        command = shlex.join(
            ["hookyard", "run", str(config), "--local", "--name", "one_step", *changes]
        )
        verify = shlex.join(["hookyard", "verify", str(config), *(overrides or [])])
        echo(f"To check that a resume continues bit for bit: {verify}", err=True)
        echo(
            f"Not checked: the model, the loss and the metrics. To run one step: {command}",
            err=True,
        )


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

    if name is None:
        entries = [describe_hook(key, cls) for key, cls in sorted(HOOKS.items())]
        if as_json:
            return print_json(entries)
        summaries = [" ".join(entry["doc"].partition("\n\n")[0].split()) for entry in entries]
        rows = [
            (entry["name"], entry["ranks"], summary)
            for entry, summary in zip(entries, summaries, strict=True)
        ]
        return print_table(("hook", "ranks", "description"), rows)
    extend_import_path([Path.cwd()])
    entry = describe_hook(name, find_hook_class(name))
    return print_json(entry) if as_json else _print_hook(entry)


def describe_hook(name: str, cls: type[Hook]) -> dict[str, Any]:
    """Describe a hook class as plain data: its purpose, ranks, events and parameters."""
    from hooks import EVENTS
    from hooks.hook import Hook
    from hooks.plan import format_priority
    from orchestrator.experiment.components import DEFAULT_HOOKS

    return {
        "name": name,
        "class": f"{cls.__module__}:{cls.__qualname__}",
        "source": inspect.getsourcefile(cls),
        "doc": inspect.getdoc(cls) or "",
        "default": name in DEFAULT_HOOKS,
        "priority": format_priority(int(cls.priority)),
        "ranks": str(cls.ranks),
        "collective": cls.collective,
        "best_effort": cls.best_effort,
        "mutable": sorted(cls.mutable),
        "waits_for_device": [event for event in EVENTS if event in cls.waits_for_device],
        "events": [event for event in EVENTS if getattr(cls, event) is not getattr(Hook, event)],
        "parameters": _list_parameters(cls),
    }


def _list_parameters(cls: type[Hook]) -> list[dict[str, Any]]:
    from orchestrator.experiment.fields.field_values import list_parameters
    from orchestrator.experiment.fields.parameters import get_field_docs, make_fields_model

    defaults = {
        key: field.get_default(call_default_factory=True)
        for key, field in make_fields_model(cls).model_fields.items()
    }
    hints = get_type_hints(cls, include_extras=True)
    docs = get_field_docs(cls)
    parameters = []
    for name, field in list_parameters(cls).items():
        default = defaults[name]
        parameters.append(
            {
                "name": name,
                "type": format_type(hints[name]),
                "required": field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING,
                "default": default if isinstance(default, _PLAIN_TYPES) else str(default),
                "doc": " ".join(docs.get(name, "").split()),
            }
        )
    return parameters


def format_type(hint: Any) -> str:
    """Format a type for people: `float >= 0 and < 1`, `near | far`, `list[int > 0] | null`."""
    base = get_origin(hint)
    arguments = get_args(hint)
    if base is Annotated:
        bounds = " and ".join(filter(None, map(_format_bound, arguments[1:])))
        return f"{format_type(arguments[0])} {bounds}".rstrip()
    if base in (Union, UnionType):
        return " | ".join(map(format_type, arguments))
    if base is Literal:
        return " | ".join(map(str, arguments))
    if hint in (NoneType, ...):
        return "null" if hint is NoneType else "..."
    name = getattr(base or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(format_type, arguments))}]" if arguments else name


def _format_bound(bound: Any) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return " ".join(
        f"{sign} {getattr(bound, key)}"
        for key, sign in signs.items()
        if getattr(bound, key, None) is not None
    )


def _print_hook(entry: dict[str, Any]) -> None:
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
    print_table(("parameter", "type", "default", "description"), rows) if rows else typer.echo(
        "no parameters"
    )
