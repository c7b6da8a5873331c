"""The list of runs and sweeps: one table, which the address sorts, filters and groups."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import units
from orchestrator.column_names import CONFIG
from orchestrator.report.headline import make_status_badge, make_tags
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.page import Page
from orchestrator.report.tables import make_cell
from orchestrator.serve.selection import (
    DESCENDING_FIRST,
    Row,
    Selection,
    filter_rows,
    group_rows,
    list_keys,
    sort_rows,
)

MAX_ROWS = 1000
"""Maximum number of rows of the table."""
_HEADINGS = {
    "name": "name",
    "status": "status",
    "best": "best",
    "tags": "tags",
    "notes": "notes",
    "kind": "kind",
    "started": "started (UTC)",
    "total_s": "took",
}
"""Columns of the table, with their headings."""
_READ = ("path", "metric", "mode", "diverged", *_HEADINGS)


def make_run_link(path: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(path)}"


def outline_runs(table: pa.Table, selection: Selection, storage: str) -> Page:
    """Make the page of the runs and sweeps of a storage, whose name is `storage`."""
    # A damaged run has no kind.
    kinds = pc.fill_null(table["kind"], "run")
    is_listed = pc.and_(pc.is_in(kinds, pa.array(["run", "sweep"])), pc.is_null(table["sweep"]))
    listed = table.filter(is_listed)
    columns = [*_READ]
    group = None
    key_column = f"{CONFIG}{selection.group}"
    if key_column in listed.column_names:
        group = key_column
        columns.append(group)
    rows = sort_rows(filter_rows(listed, selection.filter, columns), selection)
    counts = describe_rows(len(rows), len(listed))
    if selection.group and group is None:
        counts += f". No run has the key {selection.group}, so they are not grouped."
    header = [
        element("h1", "Runs"),
        element("p", storage, class_="note"),
        _render_form(selection, list_keys(listed)),
        element("p", counts, class_="note"),
        _render_table(rows, selection, group),
    ]
    return Page("Runs", concatenate(header), [])


def describe_rows(matching: int, listed: int) -> str:
    """Say how many runs there are, and how many of them the table has."""
    if not listed:
        return "There are no runs yet."
    text = f"{matching:,} of {listed:,} runs and sweeps"
    if matching > MAX_ROWS:
        text += f", of which the first {MAX_ROWS:,} are shown"
    return text


def _render_form(selection: Selection, keys: Sequence[str]) -> Markup:
    ungrouped = element("option", "nothing", value="")
    options = [element("option", key, value=key, selected=key == selection.group) for key in keys]
    return element(
        "form",
        element(
            "label",
            "Filter ",
            element(
                "input",
                type="search",
                name="filter",
                value=selection.filter,
                placeholder="words, or optimizer.lr=0.1",
            ),
        ),
        element("label", "Group by ", element("select", ungrouped, *options, name="group")),
        element("input", type="hidden", name="sort", value=selection.sort),
        element("input", type="hidden", name="order", value=selection.order),
        element("button", "Show"),
        class_="tools",
        id="selection",
        action="/",
    )


def _render_table(rows: Sequence[Row], selection: Selection, group: str | None) -> Markup:
    headings = [_render_heading(name, heading, selection) for name, heading in _HEADINGS.items()]
    if group:
        bodies = _render_groups(rows, selection.group, group)
    else:
        bodies = [element("tbody", *map(_render_row, rows[:MAX_ROWS]))]
    table = element(
        "table", element("thead", element("tr", element("td"), *headings)), *bodies, class_="runs"
    )
    button = element("button", "Compare selected")
    scroll = element("div", table, class_="scroll")
    return element("form", element("div", button, class_="tools"), scroll, action="/compare")


def _render_heading(name: str, heading: str, selection: Selection) -> Markup:
    is_sorted = name == selection.sort
    descending = not selection.descending if is_sorted else name in DESCENDING_FIRST
    link = replace(selection, sort=name, descending=descending).make_link()
    return element(
        "th",
        element("a", heading, href=link),
        scope="col",
        aria_sort=selection.order if is_sorted else None,
        class_="numbers" if name == "total_s" else None,
    )


def _render_groups(rows: Sequence[Row], key: str, group: str) -> list[Markup]:
    """Show the first rows in groups, whose headings describe all of their rows."""
    bodies = []
    remaining = MAX_ROWS
    for value, members in group_rows(rows, group):
        if not remaining:
            break
        shown = members[:remaining]
        remaining -= len(shown)
        heading = _render_group(key, value, members)
        bodies.append(element("tbody", heading, *map(_render_row, shown), id=f"group:{value}"))
    return bodies


def _render_group(key: str, value: str, rows: Sequence[Row]) -> Markup:
    text = units.format_count(len(rows), "run")
    measured = {(row["metric"], row["mode"]) for row in rows if row["best"] is not None}
    if len(measured) == 1:
        ((metric, mode),) = measured
        values = [row["best"] for row in rows if row["best"] is not None]
        best = max(values) if mode == "max" else min(values)
        best_text = units.format_value(metric, best)
        text += f"; {metric}: best {best_text}, median {units.format_value(metric, median(values))}"
    label = element("span", element("b", f"{key} = {value}"), " ", element("small", text))
    heading = element("th", label, scope="rowgroup", colspan=len(_HEADINGS) + 1)
    return element("tr", heading, class_="group")


def _render_row(row: Row) -> Markup:
    path = row["path"]
    choose = element("input", type="checkbox", name="run", value=path, aria_label=f"Choose {path}")
    started = row["started"]
    return element(
        "tr",
        element("td", choose),
        element("th", element("a", row["name"], href=make_run_link(path)), scope="row"),
        element("td", make_status_badge(row["status"])),
        _render_best(row),
        element("td", make_tags(row["tags"] or ())),
        element("td", row["notes"], class_="notes"),
        element("td", row["kind"]),
        element("td", started and f"{started:%Y-%m-%d %H:%M}"),
        element("td", units.format_value("total_s", row["total_s"]), class_="numbers"),
        id=f"run:{path}",
    )


def _render_best(row: Row) -> Markup:
    """Show the best value with its metric, or what diverged."""
    text, exact = make_cell(row["metric"] or "", row["best"])
    named = concatenate([text, " ", element("small", row["metric"])]) if text else None
    diverged = row["diverged"] and element("small", f"diverged: {row['diverged']}", class_="failed")
    return element("td", named, diverged, title=exact)
