"""The list of runs and sweeps: one table, which the address sorts, filters and groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import units
from orchestrator.report.headline import make_status_badge, make_tags
from orchestrator.report.markup import Markup, concatenate, element
from orchestrator.report.page import Page
from orchestrator.report.tables import make_cell
from orchestrator.units import CONFIG

MAX_ROWS = 1000
"""Maximum number of rows of the table."""
_COLUMNS = {
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
_READ = ("path", "metric", "mode", "diverged", *_COLUMNS)
_DESCENDING_FIRST = ("best", "started", "total_s")
"""Columns whose largest values are wanted first."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The filter, grouping and order of the shown runs."""

    filter: str = ""
    """Words that a row must have; `key=value` for a value of the configuration."""
    group: str = ""
    """Path of the configuration by whose values to group; empty for no groups."""
    sort: str = "started"
    descending: bool = True

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> "Selection":
        """Read the parameters of an address. Unknown columns are ignored."""
        sort = parameters.get("sort", "")
        if sort not in _COLUMNS:
            sort = cls.sort
        order = parameters.get("order", "")
        descending = order == "descending" if order else sort in _DESCENDING_FIRST
        return cls(parameters.get("filter", ""), parameters.get("group", ""), sort, descending)

    def make_link(self) -> str:
        order = "descending" if self.descending else "ascending"
        chosen = {"filter": self.filter, "group": self.group, "sort": self.sort, "order": order}
        return f"/?{urlencode({name: value for name, value in chosen.items() if value})}"


def make_run_link(path: str) -> str:
    """Return the address of a run's page."""
    return f"/runs/{quote(path)}"


def outline_runs(table: pa.Table, selection: Selection, storage: str) -> Page:
    """Make the page of the runs and sweeps of a storage, whose name is `storage`."""
    # A damaged run has no kind.
    kinds = pc.fill_null(table["kind"], "run")
    is_listed = pc.and_(pc.is_in(kinds, pa.array(["run", "sweep"])), pc.is_null(table["sweep"]))
    listed = table.filter(is_listed)
    group = f"{CONFIG}{selection.group}"
    columns = [*_READ, group] if group in listed.column_names else [*_READ]
    rows = sort_rows(filter_rows(listed, selection.filter, columns), selection)
    counts = describe_rows(len(rows), len(listed))
    if selection.group and group not in columns:
        counts += f". No run has the key {selection.group}, so they are not grouped."
    header = [
        element("h1", "Runs"),
        element("p", storage, class_="note"),
        _render_form(selection, list_keys(listed)),
        element("p", counts, class_="note"),
        _render_table(rows[:MAX_ROWS], selection, group if group in columns else None),
    ]
    return Page("Runs", concatenate(header), [])


def describe_rows(matching: int, listed: int) -> str:
    """Say how many runs there are, and how many of them the table has."""
    if not listed:
        return "There are no runs yet."
    text = f"{matching:,} of {listed:,} runs and sweeps"
    return f"{text}, of which the first {MAX_ROWS:,} are shown" if matching > MAX_ROWS else text


def list_keys(table: pa.Table) -> list[str]:
    """Return the paths of the configuration in which runs differ."""
    return [
        name.removeprefix(CONFIG)
        for name in table.column_names
        if name.startswith(CONFIG) and pc.count_distinct(table[name], mode="all").as_py() > 1
    ]


def filter_rows(table: pa.Table, text: str, columns: Sequence[str]) -> list[Row]:
    """Return the rows that have all words of a text."""
    words = []
    for word in text.casefold().split():
        key, is_value, value = word.partition("=")
        column = next((name for name in table.column_names if name.casefold() == CONFIG + key), "")
        if is_value and column:
            cells = table[column].to_pylist()
            matches = [value in (str(cell).casefold(), _format(cell)) for cell in cells]
            table = table.filter(pa.array(matches, pa.bool_()))
        else:
            words.append(word)
    rows: list[Row] = table.select([*columns]).to_pylist()
    return [row for row in rows if _has_words(row, words)]


def _has_words(row: Row, words: Sequence[str]) -> bool:
    cells = [row[name] for name in ("name", "kind", "status", "metric", "notes")]
    cells += row["tags"] or []
    text = " ".join(cell for cell in cells if cell).casefold()
    return all(word in text for word in words)


def sort_rows(rows: Sequence[Row], selection: Selection) -> list[Row]:
    """Return the sorted rows; those without a value come last in both directions."""

    def has_value(row: Row) -> bool:
        return row[selection.sort] not in (None, [])

    known = [row for row in rows if has_value(row)]
    known.sort(key=lambda row: row[selection.sort], reverse=selection.descending)
    return [*known, *(row for row in rows if not has_value(row))]


def _format(value: Any) -> str:
    """Format a value of the configuration; different ones have different texts."""
    if value is None:
        return "not set"
    is_number = units.is_number(value)
    return units.format_in_full(value) if is_number else units.format_parameter(value)


# Markup


def _render_form(selection: Selection, keys: Sequence[str]) -> Markup:
    ungrouped = element("option", "nothing", value="")
    options = [element("option", key, value=key, selected=key == selection.group) for key in keys]
    order = "descending" if selection.descending else "ascending"
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
        element("input", type="hidden", name="order", value=order),
        element("button", "Show"),
        class_="tools",
        id="selection",
        action="/",
    )


def _render_table(rows: Sequence[Row], selection: Selection, group: str | None) -> Markup:
    headings = [_render_heading(name, heading, selection) for name, heading in _COLUMNS.items()]
    bodies = []
    if group:
        for value, members in _group_rows(rows, group):
            heading = _render_group(selection.group, value, members)
            bodies.append(
                element("tbody", heading, *map(_render_row, members), id=f"group:{value}")
            )
    else:
        bodies.append(element("tbody", *map(_render_row, rows)))
    table = element(
        "table", element("thead", element("tr", element("td"), *headings)), *bodies, class_="runs"
    )
    button = element("button", "Compare the chosen")
    scroll = element("div", table, class_="scroll")
    return element("form", element("div", button, class_="tools"), scroll, action="/compare")


def _render_heading(name: str, heading: str, selection: Selection) -> Markup:
    is_sorted = name == selection.sort
    descending = not selection.descending if is_sorted else name in _DESCENDING_FIRST
    link = replace(selection, sort=name, descending=descending).make_link()
    order = "descending" if selection.descending else "ascending"
    return element(
        "th",
        element("a", heading, href=link),
        scope="col",
        aria_sort=order if is_sorted else None,
        class_="numbers" if name == "total_s" else None,
    )


def _group_rows(rows: Sequence[Row], group: str) -> list[tuple[str, list[Row]]]:
    """Return the rows of each value, in the order of the values."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[group], []).append(row)
    known = sorted(value for value in groups if value is not None)
    if None in groups:
        known.append(None)
    return [(_format(value), groups[value]) for value in known]


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
    heading = element("th", label, scope="rowgroup", colspan=len(_COLUMNS) + 1)
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
