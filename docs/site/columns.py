"""The columns of each table, from the docstrings of the tables and of the hooks that add them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from docs.site.docstrings import Column, Docstring
from hooks import HOOKS
from orchestrator import Run, Sweep


class Table(NamedTuple):
    """A table, and what adds columns to it."""

    name: str
    doc: str
    columns: list[tuple[Column, str]]
    """Each column with the hook that adds it; empty if every run has it."""


def list_tables() -> Iterator[Table]:
    """Yield the tables of a run and of a sweep."""
    hooks = {name: Docstring.parse(cls.__doc__ or "") for name, cls in sorted(HOOKS.items())}
    by_hooks = {name: doc.columns for name, doc in hooks.items()}
    metrics_by_hooks = {name: doc.metrics for name, doc in hooks.items()}
    yield _make_table("run.stats", Run.stats.__doc__, by_hooks)
    yield _make_table("run.metrics", Run.metrics.__doc__, metrics_by_hooks)
    yield _make_table("run.hook_costs", Run.hook_costs.__doc__, {})
    yield _make_table("sweep.trials", Sweep.trials.__doc__, {})


def _make_table(name: str, text: str | None, by_hooks: dict[str, tuple[Column, ...]]) -> Table:
    doc = Docstring.parse(text or "")
    columns = [(column, "") for column in doc.columns]
    for hook, added in by_hooks.items():
        columns += [(column, hook) for column in added]
    return Table(name, doc.summary, columns)


def make_columns() -> str:
    """Return a section for each table."""
    return "\n\n".join(_make_section(table) for table in list_tables())


def _make_section(table: Table) -> str:
    lines = [f"## `{table.name}`", "", table.doc, ""]
    own = [column for column, hook in table.columns if not hook]
    lines += [*_list_columns(own), ""]
    for name in dict.fromkeys(hook for _, hook in table.columns if hook):
        added = [column for column, hook in table.columns if hook == name]
        lines += [f"### By [`{name}`](hooks.md#{name}) {{ #{table.name}.{name} }}", ""]
        lines += [*_list_columns(added), ""]
    return "\n".join(lines)


def _list_columns(columns: Iterable[Column]) -> Iterator[str]:
    for column in columns:
        dtype = f" (`{column.dtype}`)" if column.dtype not in ("", "float64") else ""
        yield f"* {column.names}{dtype}: {column.meaning}"
