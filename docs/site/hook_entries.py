"""An entry for each hook that ships."""

from collections.abc import Iterator
from textwrap import indent
from typing import Any

from docs.site.docstrings import Column, Docstring
from docs.site.fields import make_entries
from hooks import HOOKS
from orchestrator.experiment.hook_reference import describe_hook

GROUPS = {
    "training": "Training",
    "stats": "Measurements",
    "logs": "Logs",
    "checkpointing": "Checkpoints and exports",
    "self_supervised": "Self-supervised learning",
}
"""Title of the hooks of each package."""


def make_hook_entries() -> str:
    """Return the entries of all hooks, grouped by package."""
    return "\n".join(_make_entries())


def _make_entries() -> Iterator[str]:
    for package, title in GROUPS.items():
        yield f"## {title}\n"
        for name, cls in HOOKS.items():
            if cls.__module__.split(".")[1] == package:
                yield make_hook_entry(describe_hook(name, cls))


def make_hook_entry(hook: dict[str, Any]) -> str:
    """Return the entry of a hook that `describe_hook` has described."""
    name = hook["name"]
    doc = Docstring.parse(hook["doc"])
    example = doc.example or f"{name}: {{}}"
    parts = [
        f"### `{name}` {{ #{name} }}",
        doc.summary,
        f"```yaml\nhooks:\n{indent(example, '  ')}\n```",
    ]
    if doc.text:
        parts.append(doc.text)
    parts += _list_columns("Columns", doc.columns)
    parts += _list_columns("Metrics of a report", doc.metrics)
    # The last field is the end of an entry, because a search shows a heading with what follows it.
    parts.append("\n".join(_list_facts(hook, doc.source)))
    if hook["parameters"]:
        parts.append("**Fields**")
        parts += [entry.to_markdown(4) for entry in make_entries(hook["parameters"], f"{name}.")]
    else:
        parts.append("It has no fields.")
    return "\n\n".join(parts) + "\n"


def _list_columns(title: str, columns: tuple[Column, ...]) -> Iterator[str]:
    if columns:
        yield f"**{title}**"
        yield "\n".join(f"* {column.names}: {column.meaning}" for column in columns)


def _list_facts(hook: dict[str, Any], source: str) -> Iterator[str]:
    yield f"* Class: `{hook['class']}`"
    if hook["default"]:
        yield "* On by default"
    ranks = "every rank" if hook["ranks"] == "all" else f"ranks `{hook['ranks']}`"
    if hook["collective"]:
        ranks += ", with collective calls"
    yield f"* Runs on {ranks}, with priority {hook['priority']}"
    yield f"* Events: {', '.join(f'`{event}`' for event in hook['events'])}"
    if hook["waits_for_device"]:
        events = ", ".join(f"`{event}`" for event in hook["waits_for_device"])
        yield f"* Waits for the device in {events}"
    if hook["mutable"]:
        fields = ", ".join(f"`{field}`" for field in hook["mutable"])
        yield f"* Fields that may change during a run (mutable): {fields}"
    if hook["best_effort"]:
        yield "* A failure is logged, and the run continues"
    if source:
        yield f"* Comes from: {source}"
