"""Blocks: sums and extremes of neighboring rows, so that a report or a diagnosis reads a long run
only once.

A block is a few consecutive iterations of one rank in one attempt; in a short run, a single row. For each
measurement X it has the columns `X high`, `X total`, `X known` (the number of finite values) and,
except for spans, `X low`. It also has `rank`, `attempt`, `phase`, `rows`, its `first` iteration, its last
`iteration`, and the `step` by then.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from orchestrator.column_names import SPANS
from orchestrator.tables.database import quote

MAX_ROWS_AS_BLOCKS = 2**18
"""Largest number of rows of a run whose blocks are single rows."""
MAX_BLOCKS_OF_RANK = 2000
"""Approximate number of blocks of each rank in a longer run, several for each point of a chart."""
MAX_STORED_NUMBERS = 2**23
"""Approximate number of values in the blocks of all its ranks."""
OWN_WORK = "(own work)"
"""Seconds of a rank's own work, of which blocks only have the maximum. No hook's column has such a
name.

It is the sum of all spans except the one that has the wait for others; without spans, the whole
iteration.
"""
_WAIT = "all_reduce_wait_s"
_KEYS = {"rank": "0", "attempt": "0", "phase": "'train'", "iteration": "0", "step": "0"}
"""Key columns of a row, with the value in a table that lacks one."""
_AGGREGATES = (("max", "high"), ("sum", "total"), ("count", "known"), ("min", "low"))
"""SQL aggregates of a measurement, and the names of the columns: the first for own work, three for
spans."""


def merge_blocks(column: str, part: str) -> str:
    """Return the SQL aggregate that merges a measurement's `low`, `high`, `total` or `known` of
    several blocks."""
    function = {"low": "min", "high": "max"}.get(part, "sum")
    return f"{function}({quote(f'{column} {part}')})"


def make_blocks_statement(
    columns: Collection[str], numbers: Sequence[str], rows: int, ranks: int
) -> str:
    """Return the SQL statement that creates the table `blocks` from `rows` rows of `ranks` ranks, as
    a view if each row is a block."""
    rows_per_block = 1
    values = _list_values(columns, numbers)
    if rows > MAX_ROWS_AS_BLOCKS:
        rows_per_block = max(
            math.ceil(rows / (ranks * MAX_BLOCKS_OF_RANK)),
            math.ceil(len(_AGGREGATES) * rows * len(values) / MAX_STORED_NUMBERS),
        )
    is_grouped = rows_per_block > 1

    count = "count(*)" if is_grouped else "1"
    outputs = [
        "rank",
        "attempt",
        "phase",
        f"{_aggregate('min', 'iteration', is_grouped)} as first",
        f"{_aggregate('max', 'iteration', is_grouped)} as iteration",
        f"{_aggregate('max', 'step', is_grouped)} as step",
        f"{count} as rows",
    ]
    for name in values:
        for function, part in _list_parts(name):
            value = _aggregate(function, quote(name), is_grouped)
            outputs.append(f"{value} as {quote(f'{name} {part}')}")

    kind = "table" if is_grouped else "view"
    grouping = (
        f" group by rank, attempt, phase, iteration // {rows_per_block}" if is_grouped else ""
    )
    return (
        f"create temporary {kind} blocks as select {', '.join(outputs)}"
        f" from ({_make_inputs_query(columns, values)}){grouping}"
    )


def _list_values(columns: Collection[str], numbers: Sequence[str]) -> dict[str, str]:
    """Return the measurements of a row and the rank's own work, as SQL expressions by name."""
    values = {name: quote(name) for name in numbers}
    if "step_s" in numbers:
        wait = _WAIT if _WAIT in columns else "backward_s"
        spans = [f"coalesce({name}, 0)" for name in SPANS if name in columns and name != wait]
        own_work = " + ".join(spans) or "step_s"
        values[OWN_WORK] = f"({own_work})"
    return values


def _list_parts(name: str) -> tuple[tuple[str, str], ...]:
    if name == OWN_WORK:
        return _AGGREGATES[:1]
    return _AGGREGATES[:3] if name in SPANS else _AGGREGATES


def _make_inputs_query(columns: Collection[str], values: Mapping[str, str]) -> str:
    """Return the query of the rows' keys and finite values."""
    keys = [f"{name if name in columns else default} as {name}" for name, default in _KEYS.items()]
    finite = [
        f"case when isfinite({value}) then {value} end as {quote(name)}"
        for name, value in values.items()
    ]
    return f"select {', '.join([*keys, *finite])} from rows"


def _aggregate(function: str, value: str, is_grouped: bool) -> str:
    """Return the SQL aggregate of a value over a block, which may be a single row."""
    if is_grouped:
        return f"{function}({value})"
    if function == "count":
        return f"({value} is not null)::int"
    return value
