"""Which runs of a storage are listed, and in which order and groups, as an address says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import units
from orchestrator.column_names import CONFIG

SORTABLE = ("name", "status", "best", "tags", "notes", "kind", "started", "total_s")
"""Columns by which runs can be sorted."""
DESCENDING_FIRST = ("best", "started", "total_s")
"""Columns whose largest values are wanted first."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The filter, grouping and order of the runs shown."""

    filter: str = ""
    """Words that a row must have; `key=value` for a value of the configuration."""
    group: str = ""
    """Path of the configuration by whose values to group; empty for no groups."""
    sort: str = "started"
    descending: bool = True

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Self:
        """Read the parameters of an address. Unknown columns are ignored."""
        sort = parameters.get("sort", "")
        if sort not in SORTABLE:
            sort = cls.sort
        descending = sort in DESCENDING_FIRST
        if parameters.get("order"):
            descending = parameters["order"] == "descending"
        return cls(parameters.get("filter", ""), parameters.get("group", ""), sort, descending)

    @property
    def order(self) -> str:
        """`descending` or `ascending`."""
        return "descending" if self.descending else "ascending"

    def make_link(self) -> str:
        """Return the address of the list with this selection."""
        values = {
            "filter": self.filter,
            "group": self.group,
            "sort": self.sort,
            "order": self.order,
        }
        chosen = {name: value for name, value in values.items() if value}
        return f"/?{urlencode(chosen)}"


def list_keys(table: pa.Table) -> list[str]:
    """Return the paths of the configuration in which runs differ."""
    return [
        name.removeprefix(CONFIG)
        for name in table.column_names
        if name.startswith(CONFIG) and pc.count_distinct(table[name], mode="all").as_py() > 1
    ]


def filter_rows(table: pa.Table, text: str, columns: Sequence[str]) -> list[Row]:
    """Return the rows that have all words of a text."""
    config_columns = {name.casefold(): name for name in table.column_names}
    words = []
    for word in text.casefold().split():
        key, _, value = word.partition("=")
        column = config_columns.get(CONFIG + key)
        if "=" in word and column:
            table = _filter_by_value(table, column, value)
        else:
            words.append(word)
    rows: list[Row] = table.select([*columns]).to_pylist()
    return [row for row in rows if _has_words(row, words)]


def _filter_by_value(table: pa.Table, column: str, value: str) -> pa.Table:
    """Return the rows with a value in a column of the configuration, whose case does not matter."""
    cells = table[column].to_pylist()
    matches = [value in (str(cell).casefold(), _format(cell).casefold()) for cell in cells]
    return table.filter(pa.array(matches, pa.bool_()))


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


def group_rows(rows: Sequence[Row], group: str) -> list[tuple[str, list[Row]]]:
    """Return the rows of each value, in the order of the values."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[group], []).append(row)
    known = sorted(value for value in groups if value is not None)
    if None in groups:
        known.append(None)
    return [(_format(value), groups[value]) for value in known]


def _format(value: Any) -> str:
    """Format a value of the configuration; different ones have different texts."""
    if value is None:
        return "not set"
    is_number = units.is_number(value)
    return units.format_in_full(value) if is_number else units.format_parameter(value)
